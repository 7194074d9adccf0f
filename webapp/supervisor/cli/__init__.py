"""Commands that start and check the services of this machine."""
