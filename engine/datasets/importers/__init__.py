"""Importers: convert published software-engineering datasets into datasets of this installation."""
