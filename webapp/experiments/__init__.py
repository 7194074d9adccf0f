"""Experiments, and comparison of runs."""
