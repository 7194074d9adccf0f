"""Later verdicts of trajectories."""

from __future__ import annotations

from django.db import models

from webapp.runs.models.runs import Run


class Regrade(models.Model):
    """Verdict that a regrading gave one trajectory beside its own, or the reason why there is none.

    The row identifies the trajectory by its natural key and the attempt that produced it, as ``Score`` does.
    """

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="regrades", db_index=False)
    """The regrading."""
    source = models.CharField(max_length=200)
    """Run of the trajectory, by folder name."""
    source_epoch = models.IntegerField(null=True, blank=True)
    """Attempt of that run that produced the trajectory."""
    phase = models.CharField(max_length=64)
    iteration = models.IntegerField()
    task_key = models.CharField(max_length=64)
    index = models.IntegerField()
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

    class Meta:
        ordering = ["run_id", "source", "phase", "iteration", "task_key", "index"]
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

    def __str__(self) -> str:
        return f"later verdict of {self.source}/{self.phase}/{self.iteration}/{self.task_key}/{self.index}"
