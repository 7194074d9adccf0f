"""Messages about ended runs and alerts, stored in the transaction of the change that they report.

A worker sends them after the commit (``delivery``). A message is stored once for each notification and event,
however often the event is reported.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import connection
from django.db.models import Q
from django.urls import reverse
from django.utils import timezone

from engine.types import RunState
from webapp.core.dispatch import TaskName, send_on_commit
from webapp.core.permissions import Role, has_role
from webapp.notifications.models import ALL_ALERTS, Delivery, Notification
from webapp.runs.models.alerts import Alert
from webapp.runs.models.runs import Run

MOST_ALERTS = 20
"""Largest number of alerts of one run that a notification sends within an hour."""
_MOST_SUMMARY = 4_000
"""Largest summary of a run in a message, characters of JSON."""
_MOST_TEXT = 2_000


def run_ended(*, run_id: int, state: RunState) -> None:
    """Store the messages about the end of a run."""
    wanted = _wanted(run_id, states__contains=[state.value])
    if not wanted:
        return
    run = Run.objects.select_related("experiment", "created_by").get(pk=run_id)
    payload = _payload(f"run.{state.value}", run)
    # A run may end twice in one attempt: it is resumed, and stopped before the next one begins.
    key = f"ended {state.value} {run.epoch} {run.state_changed_at.timestamp():.6f}"
    _store(run, [(target, key, payload) for target in wanted])


def alerts_raised(*, run: Run, alerts: Sequence[Alert], ended: RunState | None = None) -> None:
    """Store the messages about new alerts of one run.

    Args:
        run: the run.
        alerts: its new alerts.
        ended: final state of the run that the alerts are about; notifications that report this state are
            left out, since ``run_ended`` has a message for them.
    """
    codes = {ALL_ALERTS, *(alert.code for alert in alerts)}
    wanted = _wanted(run.pk, alerts__has_any_keys=sorted(codes)) if alerts else []
    since = timezone.now() - timedelta(hours=1)
    messages: list[tuple[Notification, str, dict[str, Any]]] = []
    for target in wanted:
        if ended is not None and ended.value in target.states:
            continue
        sent = Delivery.objects.filter(
            notification=target, run=run, key__startswith="alert ", created_at__gt=since
        ).count()
        matching = [alert for alert in alerts if _matches(target, alert)]
        messages += [
            (target, f"alert {alert.pk}", _payload("alert.raised", run, alert=_alert(alert)))
            for alert in matching[: max(0, MOST_ALERTS - sent)]
        ]
    _store(run, messages)


def _matches(target: Notification, alert: Alert) -> bool:
    return alert.code in target.alerts or (ALL_ALERTS in target.alerts and alert.severity != "info")


def _wanted(run_id: int, **fields: Any) -> list[Notification]:
    """Return the notifications about a run whose owners may still create runs."""
    about = Q(experiment=None) | Q(experiment__runs=run_id)
    rows = Notification.objects.filter(about, **fields).select_related("owner")
    return [row for row in rows.prefetch_related("owner__groups") if has_role(row.owner, Role.OPERATOR)]


def _locked(numbers: Collection[int]) -> set[int]:
    """Keep notifications from being removed before the commit; return those that still exist."""
    # Weaker than each lock of Django: transactions that store messages must not wait for each other.
    with connection.cursor() as cursor:
        cursor.execute("SELECT id FROM webapp_notification WHERE id = ANY(%s) FOR KEY SHARE", [list(numbers)])
        return {number for (number,) in cursor.fetchall()}


def _store(run: Run, messages: Sequence[tuple[Notification, str, dict[str, Any]]]) -> None:
    if not messages:
        return
    now = timezone.now()
    kept = _locked({target.pk for target, _, _ in messages})
    rows = [
        Delivery(notification=target, run=run, key=key, payload=payload, next_at=now)
        for target, key, payload in messages
        if target.pk in kept
    ]
    Delivery.objects.bulk_create(rows, ignore_conflicts=True)
    send_on_commit(TaskName.NOTIFY)


def _payload(event: str, run: Run, **more: dict[str, Any]) -> dict[str, Any]:
    """Return a message in the form of Standard Webhooks: ``type``, ``timestamp``, ``data``."""
    summary = run.summary if len(json.dumps(run.summary)) <= _MOST_SUMMARY else {}
    owner = run.created_by.get_username() if run.created_by is not None else None
    about = {
        "id": run.pk,
        "name": run.name,
        "kind": run.kind,
        "recipe": run.recipe,
        "state": run.state,
        "reason": run.reason[:_MOST_TEXT],
        "summary": summary,
        "experiment": run.experiment.name if run.experiment is not None else None,
        "created_by": owner,
        "url": (settings.PUBLIC_URL or settings.TRAINYARD_WEB_URL) + reverse("run-detail", args=[run.pk]),
    }
    return {"type": event, "timestamp": timezone.now().isoformat(), "data": {"run": about, **more}}


def _alert(alert: Alert) -> dict[str, Any]:
    return {
        "code": alert.code,
        "severity": alert.severity,
        "message": alert.message[:_MOST_TEXT],
        "iteration": alert.iteration,
        "time": alert.time.isoformat(),
    }
