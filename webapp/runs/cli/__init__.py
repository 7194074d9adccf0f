"""Commands about runs and their alerts."""
