"""Importers: published sets of software-engineering tasks become datasets of this yard."""
