"""Judging patches with hidden tests in a fresh sandbox."""
