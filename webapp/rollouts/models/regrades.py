"""Later verdicts of trajectories."""

from __future__ import annotations

from django.db import models

from webapp.rollouts.models.trajectory_key import TrajectoryKey
from webapp.runs.models.runs import Run


class Regrade(TrajectoryKey):
    """Verdict that a regrading gave one trajectory beside its own, or the reason why there is none."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="regrades", db_index=False)
    """The regrading."""
    old_verdict = models.CharField(max_length=16)
    """Verdict of the trajectory's own grading."""
    old_reward = models.FloatField()
    verdict = models.CharField(max_length=16, blank=True, default="")
    """New verdict; empty with an obstacle."""
    reward = models.FloatField(null=True, blank=True)
    obstacle = models.CharField(max_length=32, blank=True, default="")
    """Reason why the trajectory cannot be graded again (``engine.events.regrading.Obstacle``)."""
    flip = models.CharField(max_length=32, blank=True, default="")
    """Outcomes before and after (``engine.evaluation.flips``); empty for equal ones."""
    detail = models.TextField(blank=True, default="")
    failed_tests: models.JSONField[list[str], list[str]] = models.JSONField(default=list, blank=True)
    """Required tests that did not pass, the first ones."""
    num_failed_tests = models.IntegerField(default=0)
    dataset = models.CharField(max_length=200, blank=True, default="")
    """Dataset of the row under which the patch was graded."""
    row = models.CharField(max_length=64, blank=True, default="")
    """Key of that row, which may differ from the trajectory's."""
    content = models.CharField(max_length=64, blank=True, default="")
    """Content hash of that row."""
    time = models.DateTimeField()

    class Meta(TrajectoryKey.Meta):
        constraints = [
            models.UniqueConstraint(
                fields=["run", "source", "phase", "iteration", "task_key", "index"], name="regrade_key"
            )
        ]
        indexes = [
            models.Index(fields=["run", "flip"], name="regrade_flip"),
            models.Index(
                fields=["source", "phase", "iteration", "task_key", "index"], name="regrade_trajectory"
            ),
        ]
