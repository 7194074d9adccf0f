"""Published dataset formats: one module each, converting a row of the format into a task."""
