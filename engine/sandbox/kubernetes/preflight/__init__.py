"""Preflight of a cluster: what is read about it, and a pod and a sandbox that are tried."""
