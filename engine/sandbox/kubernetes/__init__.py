"""Sandboxes as pods of a Kubernetes cluster; ``backend.KubernetesBackend`` assembles the parts."""
