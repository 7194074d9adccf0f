"""Alerts that need a person's attention."""

from __future__ import annotations

from collections.abc import Sequence

from django.conf import settings
from django.db import models

from webapp.runs.models.runs import Run

REWARD_WITH = "reward_with_"
"""Beginning of the codes of alerts about a counter of reward hacking, which follows it."""


class Alert(models.Model):
    """An alert of a run, from an engine event (``seq`` set), the reconciler or a worker (``seq`` empty)."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="alerts")
    seq = models.BigIntegerField(null=True, blank=True)
    severity = models.CharField(
        max_length=8, choices=[("info", "info"), ("warning", "warning"), ("error", "error")]
    )
    code = models.CharField(max_length=100)
    message = models.TextField()
    detail = models.TextField(blank=True, default="")
    """Last line of the log behind the message; empty without one."""
    iteration = models.IntegerField(null=True, blank=True)
    task_ids = models.JSONField(default=list, blank=True)
    """Tasks whose training groups show the problem, worst first. Under an asynchronous schedule their groups
    may belong to other iterations."""
    num_alike = 1
    """Open alerts of this run and code, itself included; set by ``runs.selectors.alerts``."""
    groups: Sequence[tuple[int, str]] = ()
    """Iteration and task of these groups, as far as they are stored; set by ``runs.selectors.alerts``."""
    time = models.DateTimeField()
    acknowledged_at = models.DateTimeField(null=True, blank=True)
    acknowledged_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )

    class Meta:
        ordering = ["-time"]
        constraints = [models.UniqueConstraint(fields=["run", "seq"], name="alert_event")]
        indexes = [
            models.Index(
                fields=["-time"], condition=models.Q(acknowledged_at__isnull=True), name="alert_open"
            )
        ]

    @property
    def is_about_behaviour(self) -> bool:
        """Return whether the run's tab of behaviours has its evidence."""
        return self.code.startswith(REWARD_WITH)

    def __str__(self) -> str:
        return f"{self.severity} {self.code} of run {self.run_id}"
