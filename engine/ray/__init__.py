"""Processes on the nodes of the Ray cluster that this run is a job of. Only this package imports Ray."""
