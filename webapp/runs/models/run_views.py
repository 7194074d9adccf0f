"""Saved views of the runs table."""

from __future__ import annotations

from django.conf import settings
from django.db import models


class RunView(models.Model):
    """A person's filters, columns, groups and order of the runs table, under a name."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="run_views")
    name = models.CharField(max_length=100)
    query = models.CharField(max_length=2000, blank=True)
    """Query string of the table."""
    is_default = models.BooleanField(default=False)
    """Whether the table opens with it."""

    class Meta:
        ordering = ["name"]
        constraints = [
            models.UniqueConstraint(fields=["user", "name"], name="run_view_name"),
            models.UniqueConstraint(
                fields=["user"], condition=models.Q(is_default=True), name="run_view_default"
            ),
        ]

    def __str__(self) -> str:
        return f"view {self.name}"
