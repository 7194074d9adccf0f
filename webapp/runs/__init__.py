"""Runs: attempts, events, iterations, checkpoints, alerts, and the form of a new run."""
