"""Celery workers: they submit, poll, reconcile and reap. No task ever waits for a run."""
