"""Experiments: named sets of runs."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import models


class Experiment(models.Model):
    """A named set of runs that belong together, optionally with arms and seeds."""

    name = models.CharField(max_length=200, unique=True)
    goal = models.TextField(blank=True, default="")
    hypothesis = models.TextField(blank=True, default="")
    conclusion = models.TextField(blank=True, default="")
    design: models.JSONField[dict[str, Any], dict[str, Any]] = models.JSONField(default=dict, blank=True)
    """``webapp.experiments.designs.Design`` of the last launch; empty without arms."""
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name
