"""Languages of repositories: all that differs between them when tasks are made from commits."""
