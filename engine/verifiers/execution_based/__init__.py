"""Execution-based verifier: candidates judged by tests that anybody could run, never by the answer key."""
