"""Reports, comparisons and submissions of evaluations."""
