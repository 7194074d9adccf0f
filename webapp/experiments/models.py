"""Experiments: named sets of runs."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import models

MAX_TEXT = 20_000
"""Longest goal, hypothesis or conclusion, in characters."""


class Experiment(models.Model):
    """A named set of runs that belong together, optionally with arms and seeds."""

    name = models.CharField(max_length=200, unique=True)
    goal = models.TextField(blank=True, default="", max_length=MAX_TEXT)
    hypothesis = models.TextField(blank=True, default="", max_length=MAX_TEXT)
    conclusion = models.TextField(blank=True, default="", max_length=MAX_TEXT)
    design: models.JSONField[dict[str, Any], dict[str, Any]] = models.JSONField(default=dict, blank=True)
    """``webapp.experiments.designs.Design`` of the last launch; empty without arms."""
    max_rollouts = models.PositiveBigIntegerField(null=True, blank=True)
    """Budget of its runs in rollouts, those of evaluations included; None without a budget."""
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name
