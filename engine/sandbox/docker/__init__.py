"""Sandboxes as Docker containers; ``backend.DockerBackend`` assembles the parts."""
