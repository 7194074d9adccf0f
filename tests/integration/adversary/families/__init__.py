"""Families of hostile submissions, a module each, and honest ones."""
