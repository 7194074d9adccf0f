"""Grading of patches with hidden tests in a fresh sandbox."""
