"""Tasks from the commits of repositories: history → real changes → environments → test runs → statements."""
