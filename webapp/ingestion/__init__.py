"""Ingestion of engine events: storage and projection to rows."""
