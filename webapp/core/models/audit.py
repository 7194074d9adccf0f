"""Audit trail of changes, with their actors."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import models


class AuditEntry(models.Model):
    """One change; written by the service that made it, in the same transaction."""

    time = models.DateTimeField(auto_now_add=True)
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    """None: the system itself (reconciler, commands)."""
    action = models.CharField(max_length=64)
    """``run.create``, ``run.stop``, ``account.role``, …"""
    run = models.ForeignKey(
        "webapp.Run", null=True, blank=True, on_delete=models.SET_NULL, related_name="audit_entries"
    )
    target = models.CharField(max_length=300, blank=True, default="")
    """Changed object if it is not a run: ``user ada``, ``dataset quickstart``."""
    changes: models.JSONField[dict[str, Any], dict[str, Any]] = models.JSONField(default=dict, blank=True)
    """Setting → new value, or ``{"old": …, "new": …}``."""

    class Meta:
        ordering = ["-id"]
        verbose_name_plural = "audit entries"

    def __str__(self) -> str:
        return f"{self.action} {self.run_id or self.target}"
