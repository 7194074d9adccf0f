"""Paths, hosts, models and repositories that configurations name, and checks that they are allowed."""
