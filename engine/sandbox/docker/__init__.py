"""Sandboxes as Docker containers; ``backend.DockerBackend`` puts the parts together."""
