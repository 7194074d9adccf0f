"""Sandbox leases, the newest snapshot of each run's pool, and results of the reaper."""

from __future__ import annotations

from typing import Any

from django.db import models

from webapp.runs.models.runs import Run


class Sandbox(models.Model):
    """Lease of a sandbox; the row is created before the sandbox starts."""

    class State(models.TextChoices):
        """State of the sandbox's life cycle."""

        LEASED = "leased"
        """Admitted; the sandbox is being started."""
        STARTED = "started"
        CLOSED = "closed"
        FAILED = "failed"
        """The sandbox did not start, or failed in use."""
        LOST = "lost"
        """The run's attempt ended without reporting the sandbox's end; the reaper removes it."""

    OPEN = (State.LEASED, State.STARTED)

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="sandboxes", db_index=False)
    lease = models.CharField(max_length=64)
    epoch = models.IntegerField()
    state = models.CharField(max_length=8, choices=State.choices)
    name = models.CharField(max_length=200, blank=True, default="")
    """Purpose, e.g. a rollout's key."""
    lane = models.CharField(max_length=64, blank=True, default="")
    image = models.CharField(max_length=300)
    backend = models.CharField(max_length=16)
    sandbox_id = models.CharField(max_length=200, blank=True, default="")
    node = models.CharField(max_length=200, blank=True, default="")
    warm = models.BooleanField(default=False)
    """True if the sandbox was started ahead of the request."""
    queue_seconds = models.FloatField(default=0.0)
    pull_seconds = models.FloatField(default=0.0)
    start_seconds = models.FloatField(default=0.0)
    leased_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    failure = models.CharField(max_length=32, blank=True, default="")
    """Kind of failure, see ``engine.events.failures``."""
    reason = models.TextField(blank=True, default="")

    class Meta:
        ordering = ["-id"]
        constraints = [models.UniqueConstraint(fields=["run", "lease"], name="sandbox_lease")]
        indexes = [
            models.Index(
                fields=["run", "leased_at"],
                condition=models.Q(state__in=["leased", "started"]),
                name="sandbox_open",
            ),
            models.Index(fields=["-ended_at"], condition=models.Q(state="failed"), name="sandbox_failed"),
        ]

    def __str__(self) -> str:
        return f"sandbox {self.sandbox_id or self.lease} of run {self.run_id}"


class Pool(models.Model):
    """Newest snapshot of a run's pool (``engine.events.sandboxes.PoolStatus``)."""

    run = models.OneToOneField(Run, on_delete=models.CASCADE, primary_key=True, related_name="pool")
    time = models.DateTimeField()
    backend = models.CharField(max_length=16)
    wanted = models.IntegerField()
    waiting = models.IntegerField()
    starting = models.IntegerField()
    live = models.IntegerField()
    idle = models.IntegerField()
    max_live = models.IntegerField()
    max_starting = models.IntegerField()
    opened = models.BigIntegerField()
    orphans = models.IntegerField()
    failures: models.JSONField[dict[str, int], dict[str, int]] = models.JSONField(default=dict)
    """Kind → number of failures in this attempt."""
    images: models.JSONField[list[dict[str, Any]], list[dict[str, Any]]] = models.JSONField(default=list)
    """Images whose sandboxes fail to start, as ``ImageTrouble``."""
    nodes: models.JSONField[dict[str, int], dict[str, int]] = models.JSONField(default=dict)
    clocks: models.JSONField[dict[str, Any], dict[str, Any]] = models.JSONField(default=dict)
    """Clock → ``ClockRecord``."""
    paused_reason = models.TextField(blank=True, default="")
    blocked: models.JSONField[dict[str, int], dict[str, int]] = models.JSONField(default=dict)
    """Reason of delayed starts → number of sandboxes."""

    def __str__(self) -> str:
        return f"pool of run {self.run_id}"


class Reaper(models.Model):
    """Reaping results of one backend so far; one row per backend."""

    backend = models.CharField(max_length=16, unique=True)
    checked_at = models.DateTimeField()
    removed = models.BigIntegerField(default=0)
    """Number of orphans removed by all checks."""
    last_removed = models.IntegerField(default=0)
    """Number of orphans removed at ``last_removed_at``."""
    last_removed_at = models.DateTimeField(null=True, blank=True)
    """Time of the last check that removed orphans."""
    error = models.TextField(blank=True, default="")
    """Error of the last check; empty if the check succeeded."""

    class Meta:
        ordering = ["backend"]

    def __str__(self) -> str:
        return f"reaper of {self.backend} sandboxes"
