"""Pools of sandboxes and their leases."""
