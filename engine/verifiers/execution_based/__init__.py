"""Execution-based verifier: candidates judged by tests without the answer key."""
