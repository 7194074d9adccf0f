"""Sandboxes as pods of a Kubernetes cluster; ``backend.KubernetesBackend`` puts the parts together."""
