"""Launcher of engines as jobs of a Ray cluster."""
