"""Families of hostile and honest submissions, one per module."""
