"""Counterfactual grading: tests whose assertions were made false, which an honest solution must fail."""
