"""Official reports and predictions: writing, reading and grading again."""
