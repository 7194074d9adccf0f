"""Preflight of a cluster: checks of its configuration, and trial starts of a pod and a sandbox."""
