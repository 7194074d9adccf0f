"""Audit trail, written by the service that makes a change and in its transaction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.contrib.auth.models import User

from webapp.core.models.audit import AuditEntry
from webapp.runs.models.runs import Run


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


def record_change(
    *, actor: User | None, action: str, run: Run, changes: Mapping[str, Any] | None = None
) -> None:
    """Record a change of a run; the entry names the run's owner if another person changed it."""
    owner = run.created_by if actor is not None and run.created_by != actor else None
    ownership = {"owner": owner.get_username()} if owner is not None else {}
    record(actor=actor, action=action, run_id=run.pk, changes={**(changes or {}), **ownership})
