"""Commands about evaluations, and grading without a run."""
