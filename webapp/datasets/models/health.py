"""Validation results and quarantine decisions of tasks, mirrored from every ``validation.jsonl``."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import models

from engine.events.health import RowStatus, SideOutcome
from webapp.core.models.choices import choices
from webapp.datasets.models.datasets import Task


class Validation(models.Model):
    """Result of one validation run for one task; ``Task.validation`` is the newest valid one."""

    task = models.ForeignKey(Task, on_delete=models.CASCADE, related_name="validations", db_index=False)
    uid = models.CharField(max_length=200)
    content = models.CharField(max_length=16, blank=True, default="")
    """Content hash of the graded row; the result is valid while the task has the same hash."""
    run = models.ForeignKey(
        "webapp.Run", null=True, blank=True, on_delete=models.SET_NULL, related_name="validations"
    )
    run_label = models.CharField(max_length=100, blank=True, default="")
    """Name of the run in its own records, for runs of other installations."""
    time = models.DateTimeField()
    status = models.CharField(max_length=16, choices=choices(RowStatus))
    noop = models.CharField(max_length=8, choices=choices(SideOutcome))
    gold = models.CharField(max_length=8, choices=choices(SideOutcome))
    """Outcome of grading the untouched row and its gold patch."""
    repeats = models.IntegerField(default=1)
    noop_seconds = models.FloatField(null=True, blank=True)
    gold_seconds = models.FloatField(null=True, blank=True)
    """Mean time of one grading, seconds; None if nothing was graded."""
    flaky_tests: models.JSONField[list[str], list[str]] = models.JSONField(default=list, blank=True)
    num_flaky_tests = models.IntegerField(default=0)
    reason = models.TextField(blank=True, default="")
    quarantine = models.BooleanField(default=True)
    """True if the run was configured to quarantine faulty rows."""
    coverage: models.JSONField[dict[str, Any] | None, dict[str, Any] | None] = models.JSONField(
        null=True, blank=True
    )
    """Mutated tests, see ``engine.events.health.MutantCoverage``; None if not attempted."""
    strength: models.JSONField[dict[str, Any] | None, dict[str, Any] | None] = models.JSONField(
        null=True, blank=True
    )
    """Test strength, see ``engine.events.health.TestStrength``; None if not measured. Only persons who may
    see answers may see its ``passed``."""
    sides: models.JSONField[dict[str, Any], dict[str, Any]] = models.JSONField(default=dict, blank=True)
    """``{"noop": {...}, "gold": {...}}`` with every verdict and time, see ``engine.events.health.Side``."""

    class Meta:
        ordering = ["-time", "-id"]
        constraints = [models.UniqueConstraint(fields=["task", "uid"], name="validation_uid")]
        indexes = [
            models.Index(fields=["task", "-time", "-id"], name="validation_newest"),
            models.Index(
                fields=["id"],
                include=["noop", "gold", "noop_seconds", "gold_seconds"],
                name="validation_outcome",
            ),
        ]

    def __str__(self) -> str:
        return f"validation of task {self.task_id}: {self.status}"


class Proof(models.Model):
    """Result of one proof of a task's mutated tests; ``Task.proof`` is the newest valid one."""

    task = models.ForeignKey(Task, on_delete=models.CASCADE, related_name="proofs", db_index=False)
    uid = models.CharField(max_length=200)
    content = models.CharField(max_length=16, blank=True, default="")
    time = models.DateTimeField()
    coverage: models.JSONField[dict[str, Any] | None, dict[str, Any] | None] = models.JSONField(
        null=True, blank=True
    )
    """``MutantCoverage`` of the row's tests; None if the proof failed."""
    problem = models.TextField(blank=True, default="")
    """Reason why the proof failed."""

    class Meta:
        ordering = ["-time", "-id"]
        constraints = [models.UniqueConstraint(fields=["task", "uid"], name="proof_uid")]
        indexes = [models.Index(fields=["task", "-time", "-id"], name="proof_newest")]

    def __str__(self) -> str:
        return f"proof of task {self.task_id}: {self.problem or 'made'}"


class QuarantineDecision(models.Model):
    """Decision of a person to quarantine or release a task; the newest overrides every validation."""

    task = models.ForeignKey(Task, on_delete=models.CASCADE, related_name="decisions", db_index=False)
    uid = models.CharField(max_length=200)
    content = models.CharField(max_length=16, blank=True, default="")
    time = models.DateTimeField()
    quarantined = models.BooleanField()
    reason = models.TextField()
    by = models.CharField(max_length=150, blank=True, default="")
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )

    class Meta:
        ordering = ["-time", "-id"]
        constraints = [models.UniqueConstraint(fields=["task", "uid"], name="decision_uid")]
        indexes = [models.Index(fields=["task", "-time", "-id"], name="decision_newest")]

    def __str__(self) -> str:
        return f"task {self.task_id} {'quarantined' if self.quarantined else 'released'}"
