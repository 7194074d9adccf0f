"""Scores of finished rollouts without the answer key, and selection by them."""
