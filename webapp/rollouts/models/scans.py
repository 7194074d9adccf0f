"""Scanners that people entered, and what all scanners found in each trajectory."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex
from django.db import models

from engine.scanners.patterns import PLACES
from webapp.rollouts.models.trajectories import Trajectory
from webapp.runs.models.runs import Run


class EnteredScanner(models.Model):
    """A regular expression or a rubric; the shipped scanners are in ``engine.scanners.rules``."""

    name = models.CharField(max_length=64, unique=True)
    version = models.IntegerField(default=1)
    """Raised by each change; hits of earlier versions do not count."""
    words = models.CharField(max_length=300, blank=True, default="")
    """Description of what it finds."""
    pattern = models.CharField(max_length=500, blank=True, default="")
    """Empty for a rubric."""
    place = models.CharField(
        max_length=16, choices=[(place, place) for place in PLACES], blank=True, default=""
    )
    """Texts of steps that it searches."""
    rubric = models.TextField(blank=True, default="")
    """Question to the model; empty for an expression."""
    endpoint = models.CharField(max_length=64, blank=True, default="")
    """Name of the endpoint that is asked."""
    model = models.CharField(max_length=200, blank=True, default="")
    problem = models.TextField(blank=True, default="")
    """Reason why it is no longer used, such as a search that took too long; empty if it is used."""
    num_slow = models.IntegerField(default=0)
    """Trajectories for which the search took too long."""
    removed = models.BooleanField(default=False)
    """Kept for its version: a later scanner of this name starts with a higher one."""
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return f"scanner {self.name} {self.version}"


class Scan(models.Model):
    """Hits of all scanners in a finished trajectory, and its thinking by purpose.

    Ingest adds the row, workers fill it.
    """

    trajectory = models.OneToOneField(
        Trajectory, on_delete=models.CASCADE, primary_key=True, related_name="scan"
    )
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="+", db_index=False)
    phase = models.CharField(max_length=64)
    iteration = models.IntegerField()
    """Columns of the trajectory, so that shares are computed without its large rows."""
    versions: models.JSONField[dict[str, int], dict[str, int]] = models.JSONField(default=dict)
    """Version of each scanner that read the trajectory, by name."""
    fingerprint = models.CharField(max_length=16, default="")
    """``selectors.scans.fingerprint`` when it was last scanned; empty before."""
    found: ArrayField[list[str], list[str]] = ArrayField(models.CharField(max_length=64), default=list)
    """Names of the scanners with hits, sorted."""
    hits: models.JSONField[dict[str, dict[str, Any]], dict[str, dict[str, Any]]] = models.JSONField(
        default=dict
    )
    """By scanner with hits: their ``count``, and the ``first`` ones as ``[step or null, detail]``."""
    purpose_steps: ArrayField[list[int], list[int]] = ArrayField(models.BigIntegerField(), default=list)
    """Steps with known thinking tokens by purpose, in the order of ``engine.scanners.purposes.PURPOSES``;
    empty for environments without a repository, and before the scan."""
    purpose_thinking: ArrayField[list[int], list[int]] = ArrayField(models.BigIntegerField(), default=list)
    """Thinking tokens of these steps, in the same order."""
    is_indexed = models.BooleanField(default=False)
    """Whether the trajectory's texts are in ``Passage``."""

    class Meta:
        indexes = [
            GinIndex(fields=["found"], name="scan_found"),
            models.Index(fields=["run", "-trajectory"], name="scan_newest"),
            models.Index(fields=["fingerprint", "-trajectory"], name="scan_pending"),
            models.Index(fields=["-trajectory"], condition=models.Q(is_indexed=False), name="scan_unindexed"),
        ]

    def __str__(self) -> str:
        return f"scan of trajectory {self.trajectory_id}"
