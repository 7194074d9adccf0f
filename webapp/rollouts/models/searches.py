"""Searches over trajectories that people saved."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import models


class SavedSearch(models.Model):
    """Filters of a search under a name; everybody may use it."""

    name = models.CharField(max_length=80, unique=True)
    filters: models.JSONField[dict[str, Any], dict[str, Any]] = models.JSONField(default=dict)
    """Filters that are not empty (``selectors.filters.TrajectoryFilters``)."""
    author = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    """None for a search that a command saved."""
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return f"search {self.name}"
