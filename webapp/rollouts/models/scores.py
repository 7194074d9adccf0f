"""Scores of verifiers for trajectories."""

from __future__ import annotations

from django.db import models

from webapp.runs.models.runs import Run


class Score(models.Model):
    """Score that a verifier's run gave one trajectory, or the reason why there is none.

    The row identifies the trajectory by its natural key and the attempt that produced it. If a later attempt
    produces the trajectory again, the score does not apply to the new one.
    """

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="scores", db_index=False)
    """The verifier's run."""
    source = models.CharField(max_length=200)
    """Run of the trajectory, by folder name."""
    source_epoch = models.IntegerField(null=True, blank=True)
    """Attempt of that run that produced the trajectory; None in rows stored by earlier versions."""
    phase = models.CharField(max_length=64)
    iteration = models.IntegerField()
    task_key = models.CharField(max_length=64)
    index = models.IntegerField()
    p_yes = models.FloatField(null=True, blank=True)
    """P(YES) / (P(YES) + P(NO)); None where there is no score."""
    yes_logprob = models.FloatField(null=True, blank=True)
    no_logprob = models.FloatField(null=True, blank=True)
    regression_passes = models.IntegerField(null=True, blank=True)
    """Regression tests that passed under the patch; None where there is no score."""
    regression_tests = models.IntegerField(null=True, blank=True)
    regression_status = models.CharField(max_length=32, blank=True, default="")
    """Status of the regression test run: ``ran``, ``timed_out``, …"""
    reproduction_passes = models.IntegerField(null=True, blank=True)
    """Passed tests written by testing agents; None without a score, or if none were requested."""
    reproduction_tests = models.IntegerField(null=True, blank=True)
    detail = models.TextField(blank=True, default="")
    """Test runs that did not complete, with the reason."""
    error = models.TextField(blank=True, default="")
    attempts = models.IntegerField(default=1)
    prompt_tokens = models.BigIntegerField(default=0)
    shortened = models.IntegerField(default=0)
    """Number of parts of the trajectory that were replaced or removed to fit the judge's context."""
    cost = models.FloatField(null=True, blank=True)
    """US dollars; None where no price is known."""
    resolved = models.BooleanField(null=True, blank=True)
    """Whether the trajectory had passed grading when it was scored."""
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


class ExaminedTest(models.Model):
    """Result of a verifier's run for a test by a testing agent, identified by the agent's trajectory."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="examined_tests", db_index=False)
    """The verifier's run."""
    source = models.CharField(max_length=200)
    """Run of the testing agent, by folder name."""
    source_epoch = models.IntegerField(null=True, blank=True)
    """Attempt of that run that wrote the test; None in rows stored by earlier versions."""
    phase = models.CharField(max_length=64)
    iteration = models.IntegerField()
    task_key = models.CharField(max_length=64)
    index = models.IntegerField()
    digest = models.CharField(max_length=64)
    """Hash of the test file."""
    rejection = models.CharField(max_length=32, blank=True, default="")
    """Reason why the test was rejected; empty for kept tests."""
    detail = models.TextField(blank=True, default="")
    tests = models.IntegerField(default=0)
    """Tests of the file that fail on the unmodified repository; only these count."""
    good = models.IntegerField(default=0)
    """Graded candidates that resolve the task."""
    good_passed = models.IntegerField(default=0)
    bad = models.IntegerField(default=0)
    """Other graded candidates."""
    bad_passed = models.IntegerField(default=0)
    time = models.DateTimeField()

    class Meta:
        ordering = ["run_id", "source", "phase", "iteration", "task_key", "index"]
        constraints = [
            models.UniqueConstraint(
                fields=["run", "source", "phase", "iteration", "task_key", "index"], name="examined_test_key"
            )
        ]

    def __str__(self) -> str:
        return f"test of {self.source}/{self.phase}/{self.iteration}/{self.task_key}/{self.index}"

    @property
    def is_toxic(self) -> bool:
        """Return whether every candidate that resolves the task fails a kept test; False without any."""
        return not self.rejection and self.good > 0 and self.good_passed == 0

    @property
    def is_misleading(self) -> bool:
        """Return whether the test is toxic and a failing candidate passes it (R2E-Gym's toxic tests)."""
        return self.is_toxic and self.bad_passed > 0
