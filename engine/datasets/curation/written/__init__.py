"""Faults that a model writes into functions."""
