"""Copies of run folders in an object store, for nodes that may be lost with their disks."""
