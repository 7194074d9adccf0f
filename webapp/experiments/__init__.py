"""Experiments, and runs compared."""
