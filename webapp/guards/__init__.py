"""Middleware before any view: limits on request body and rate, and a record of the session's use."""
