"""Key of rows about a trajectory of another run."""

from __future__ import annotations

from django.db import models


class TrajectoryKey(models.Model):
    """Natural key of a trajectory and the attempt that produced it.

    If a later attempt produces the trajectory again, the row does not apply to the new one.
    """

    source = models.CharField(max_length=200)
    """Run of the trajectory, by folder name."""
    source_epoch = models.IntegerField(null=True, blank=True)
    """Attempt of that run that produced the trajectory; None in rows stored by earlier versions."""
    phase = models.CharField(max_length=64)
    iteration = models.IntegerField()
    task_key = models.CharField(max_length=64)
    index = models.IntegerField()

    class Meta:
        abstract = True
        ordering = ["run_id", "source", "phase", "iteration", "task_key", "index"]

    def __str__(self) -> str:
        kind = self._meta.verbose_name
        return f"{kind} of {self.source}/{self.phase}/{self.iteration}/{self.task_key}/{self.index}"
