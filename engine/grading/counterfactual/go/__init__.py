"""Mutants of Go tests: plain conditions with ``t.Error``, testify, gotest.tools, tables of cases."""
