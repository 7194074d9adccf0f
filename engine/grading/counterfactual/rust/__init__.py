"""Mutants of Rust tests: ``assert_eq!``, ``assert_ne!``, ``assert!``."""
