"""Datasets and their tasks: health, quarantine, difficulty, imports."""
