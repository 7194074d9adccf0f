"""Scores of verifiers for trajectories."""

from __future__ import annotations

from django.db import models

from webapp.rollouts.models.trajectory_key import TrajectoryKey
from webapp.runs.models.runs import Run


class Score(TrajectoryKey):
    """Score that a verifier's run gave one trajectory, or the reason why there is none."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="scores", db_index=False)
    """The verifier's run."""
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

    class Meta(TrajectoryKey.Meta):
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


class ExaminedTest(TrajectoryKey):
    """Result of a verifier's run for a test by a testing agent, identified by the agent's trajectory."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="examined_tests", db_index=False)
    """The verifier's run."""
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

    class Meta(TrajectoryKey.Meta):
        constraints = [
            models.UniqueConstraint(
                fields=["run", "source", "phase", "iteration", "task_key", "index"], name="examined_test_key"
            )
        ]

    @property
    def is_toxic(self) -> bool:
        """Return whether every candidate that resolves the task fails a kept test; False without any."""
        return not self.rejection and self.good > 0 and self.good_passed == 0

    @property
    def is_misleading(self) -> bool:
        """Return whether the test is toxic and a failing candidate passes it (R2E-Gym's toxic tests)."""
        return self.is_toxic and self.bad_passed > 0
