"""Open alerts and their acknowledgement."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from ninja import Router, Schema
from ninja.errors import HttpError

from webapp.api.auth import caller, operator, role_of_caller, viewer
from webapp.core.permissions import check_change
from webapp.rollouts.services import annotations as annotation_writes
from webapp.runs.models.alerts import Alert
from webapp.runs.selectors import alerts as reads

router = Router(tags=["alerts"])


class AlertOut(Schema):
    """An alert of a run."""

    id: int
    run_id: int
    severity: str
    code: str
    message: str
    detail: str
    """Last line of the log behind the message; empty without one."""
    iteration: int | None
    time: datetime
    acknowledged_at: datetime | None
    num_alike: int
    """In lists: open alerts of its run and code, itself included."""


class AlertList(Schema):
    """The newest open alert of each kind, and the number of kinds."""

    total: int
    items: list[AlertOut]


@router.get("/alerts", auth=viewer, response=AlertList)
def list_alerts(request: HttpRequest, run: int | None = None, size: int = 50) -> dict[str, Any]:
    """List open alerts, newest first; without ``run`` those of runs that are not archived, except notes."""
    alerts, total = reads.open_alerts(run_id=run, limit=max(1, min(size, 200)))
    return {"total": total, "items": alerts}


@router.post("/alerts/{int:alert_id}/acknowledge", auth=operator, response=AlertOut)
def acknowledge_alert(request: HttpRequest, alert_id: int) -> Alert:
    """Acknowledge an alert and the earlier ones of its run and code."""
    alert = reads.get_alert(alert_id)
    if alert is None:
        raise HttpError(404, f"there is no alert {alert_id}")
    check_change(alert.run, role_of_caller(request), caller(request).pk)
    annotation_writes.acknowledge(alert=alert, actor=caller(request))
    alert.refresh_from_db()
    return alert
