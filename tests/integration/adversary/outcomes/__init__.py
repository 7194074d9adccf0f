"""Families that bend outcomes: of tests, runners, reports, verifiers and what they print."""
