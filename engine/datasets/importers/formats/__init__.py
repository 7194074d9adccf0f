"""Published dataset formats: one module each, from a row of the format to our task."""
