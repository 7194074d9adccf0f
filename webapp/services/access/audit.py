"""Audit trail, written by the service that makes a change and in its transaction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.contrib.auth.models import User

from webapp.models import AuditEntry


def record(
    *,
    actor: User | None,
    action: str,
    run_id: int | None = None,
    target: str = "",
    changes: Mapping[str, Any] | None = None,
) -> None:
    """Record that ``actor`` (None: the system) performed ``action``."""
    AuditEntry.objects.create(
        actor=actor, action=action, run_id=run_id, target=target[:300], changes=dict(changes or {})
    )
