"""Mutants of Python test functions, found in the syntax tree and written at source positions."""
