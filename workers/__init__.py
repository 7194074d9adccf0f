"""Celery workers: launching, polling, reconciling and reaping. No task waits for a run."""
