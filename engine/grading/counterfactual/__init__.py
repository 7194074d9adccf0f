"""Audits of submissions: mutated tests, which an honest solution must fail."""
