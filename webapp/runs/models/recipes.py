"""Recipes that people saved from runs."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import models


class SavedRecipe(models.Model):
    """A configuration under a name: settings over a shipped recipe."""

    name = models.CharField(max_length=100, unique=True)
    description = models.TextField(blank=True, default="")
    kind = models.CharField(max_length=16)
    base = models.CharField(max_length=100)
    """The shipped recipe."""
    overrides: models.JSONField[dict[str, Any], dict[str, Any]] = models.JSONField(default=dict)
    """Settings that differ from it, by dotted name."""
    run_id = models.BigIntegerField()
    """Number of the run that it was saved from, which may have been deleted."""
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return f"recipe {self.name}"
