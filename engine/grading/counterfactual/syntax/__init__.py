"""Mutants of test files in languages with a tree-sitter grammar: what these languages share."""
