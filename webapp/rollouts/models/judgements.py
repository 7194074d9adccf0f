"""Requests that a model judges rollouts by a person's rubric."""

from __future__ import annotations

from django.conf import settings
from django.db import models

from webapp.rollouts.models.scans import EnteredScanner
from webapp.runs.models.runs import Run


class Judgement(models.Model):
    """Scan of the newest rollouts of a run with a rubric; ``Scan`` has the hits.

    A rollout is counted as asked before its question is sent, so that a killed worker repeats no cost.
    """

    scanner = models.ForeignKey(EnteredScanner, on_delete=models.CASCADE, related_name="judgements")
    version = models.IntegerField()
    """Version of the scanner when it was started."""
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="+")
    most = models.IntegerField()
    """Maximum number of rollouts."""
    before = models.BigIntegerField()
    """The next rollouts are those with lower ids."""
    asked = models.IntegerField(default=0)
    answered = models.IntegerField(default=0)
    found = models.IntegerField(default=0)
    """Rollouts to which the rubric applies."""
    prompt_tokens = models.BigIntegerField(default=0)
    generated_tokens = models.BigIntegerField(default=0)
    problem = models.TextField(blank=True, default="")
    """Reason why it ended early; else that of the last missing answer."""
    started_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-id"]
        indexes = [
            models.Index(fields=["id"], condition=models.Q(finished_at=None), name="judgement_unfinished")
        ]

    def __str__(self) -> str:
        return f"scan {self.pk} of run {self.run_id} with {self.scanner.name}"

    @property
    def unanswered(self) -> int:
        """Return the number of rollouts without an answer, or with one that is not of the asked form."""
        return self.asked - self.answered
