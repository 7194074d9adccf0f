"""Audits of submissions with mutated tests: tests whose assertions were mutated, which an honest solution must fail."""
