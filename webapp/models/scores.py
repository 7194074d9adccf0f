"""Scores of verifiers for trajectories."""

from __future__ import annotations

from django.db import models

from webapp.models.runs import Run


class Score(models.Model):
    """Finding of a run of kind ``verifier`` on one trajectory: a score, or the reason why there is none.

    The trajectory is named by its natural key and the attempt that made it: when a later attempt of its own
    run makes it again, the score is not that of the new one.
    """

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="scores", db_index=False)
    """The verifier's run."""
    source = models.CharField(max_length=200)
    """Run of the trajectory, as its folder is called."""
    source_epoch = models.IntegerField(null=True, blank=True)
    """Attempt of that run that made the trajectory; None in scores of earlier versions."""
    phase = models.CharField(max_length=64)
    iteration = models.IntegerField()
    task_key = models.CharField(max_length=64)
    index = models.IntegerField()
    p_yes = models.FloatField(null=True, blank=True)
    """P(YES) / (P(YES) + P(NO)); None where there is no score."""
    yes_logprob = models.FloatField(null=True, blank=True)
    no_logprob = models.FloatField(null=True, blank=True)
    error = models.TextField(blank=True, default="")
    attempts = models.IntegerField(default=1)
    prompt_tokens = models.BigIntegerField(default=0)
    shortened = models.IntegerField(default=0)
    """Number of pieces of the trajectory that were replaced or removed so that it fits."""
    cost = models.FloatField(null=True, blank=True)
    """US dollars; None where no price is known."""
    resolved = models.BooleanField(null=True, blank=True)
    """Whether grading had passed the trajectory when it was judged."""
    time = models.DateTimeField()

    class Meta:
        ordering = ["run_id", "source", "phase", "iteration", "task_key", "index"]
        constraints = [
            models.UniqueConstraint(
                fields=["run", "source", "phase", "iteration", "task_key", "index"], name="score_key"
            )
        ]
        indexes = [
            models.Index(fields=["run", "p_yes"], name="score_order"),
            models.Index(
                fields=["source", "phase", "iteration", "task_key", "index"], name="score_trajectory"
            ),
        ]

    def __str__(self) -> str:
        return f"score of {self.source}/{self.phase}/{self.iteration}/{self.task_key}/{self.index}"
