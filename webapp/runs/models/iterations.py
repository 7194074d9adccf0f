"""Iterations, evaluations, checkpoints: a run's milestones."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from django.db import models

from engine.evaluation.endings import Endings
from webapp.runs.models.runs import Run


class Iteration(models.Model):
    """One pass of collect → grade → update."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="iterations", db_index=False)
    index = models.IntegerField()
    policy_version = models.IntegerField()
    """Version that sampled the rollouts; after the update, the updated version."""
    num_tasks = models.IntegerField(default=0)
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True, blank=True)
    metrics: models.JSONField[dict[str, float], dict[str, float]] = models.JSONField(default=dict, blank=True)
    """``area/name`` → value."""
    profile: models.JSONField[dict[str, Any], dict[str, Any]] = models.JSONField(default=dict, blank=True)
    """Per env-step index, computed when the iteration finished: ``{"steps": [n0, n1, …],
    "thinking": [mean tokens …], "generated": [mean tokens …], "actions": {"edit": n, …}}``."""
    timeline: models.JSONField[dict[str, Any] | None, dict[str, Any] | None] = models.JSONField(
        null=True, blank=True
    )
    """``engine.events.schedule.Timeline``; None where none was reported."""

    class Meta:
        ordering = ["run_id", "index"]
        constraints = [models.UniqueConstraint(fields=["run", "index"], name="iteration_index")]

    def __str__(self) -> str:
        return f"iteration {self.index} of run {self.run_id}"


class Evaluation(models.Model):
    """A split measured at one policy version; never part of training."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="evaluations", db_index=False)
    iteration = models.IntegerField()
    """Iterations completed before it."""
    name = models.CharField(max_length=64)
    policy_version = models.IntegerField()
    num_samples = models.IntegerField()
    num_tasks = models.IntegerField()
    num_solved = models.IntegerField()
    solve_rate = models.FloatField()
    interval_low = models.FloatField()
    interval_high = models.FloatField()
    """95 % interval with tasks as the sampled units."""
    pass_at_k = models.JSONField(default=list, blank=True)
    """``{k, rate, interval_low, interval_high}`` for some k: ``engine.events.types.PassAtK``."""
    metrics: models.JSONField[dict[str, float], dict[str, float]] = models.JSONField(default=dict, blank=True)
    """``area/name`` → value, of its rollouts and of the policy."""
    finished_at = models.DateTimeField()

    class Meta:
        ordering = ["run_id", "iteration", "name"]
        constraints = [models.UniqueConstraint(fields=["run", "iteration", "name"], name="evaluation_point")]

    def __str__(self) -> str:
        return f"evaluation {self.name} at {self.iteration} of run {self.run_id}"

    @cached_property
    def endings(self) -> Endings | None:
        """Endings of its attempts; None where its metrics do not have them."""
        return Endings.of_metrics(self.metrics, graded=self.num_samples)


class Checkpoint(models.Model):
    """Complete weights on disk, saved after ``iteration`` iterations."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="checkpoints", db_index=False)
    iteration = models.IntegerField()
    policy_version = models.IntegerField()
    path = models.CharField(max_length=1000)
    checksum = models.CharField(max_length=128)
    saved_at = models.DateTimeField()

    class Meta:
        ordering = ["run_id", "iteration"]
        constraints = [models.UniqueConstraint(fields=["run", "iteration"], name="checkpoint_iteration")]

    def __str__(self) -> str:
        return f"checkpoint {self.iteration} of run {self.run_id}"
