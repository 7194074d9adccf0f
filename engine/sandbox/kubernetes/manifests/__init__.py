"""Manifests as pure functions: pods, the agent's ConfigMap, the preloading DaemonSet."""
