"""Official reports and predictions: written, read and graded again."""
