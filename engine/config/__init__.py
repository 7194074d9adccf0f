"""Typed, torch-free run configuration. ``engine.config.run`` holds the run kinds, ``recipes`` the named ones."""
