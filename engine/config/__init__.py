"""Typed, torch-free run configuration: ``run`` holds the run kinds, ``recipes`` the named ones."""
