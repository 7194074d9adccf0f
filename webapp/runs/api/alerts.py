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


class AlertKindOut(Schema):
    """Open alerts of one code over all runs."""

    code: str
    num_alerts: int
    num_runs: int


class AlertList(Schema):
    """The newest open alert of each run and code, and the number of such pairs."""

    total: int
    items: list[AlertOut]
    kinds: list[AlertKindOut]
    """Codes, the newest first; empty for one run."""


@router.get("/alerts", auth=viewer, response=AlertList)
def list_alerts(request: HttpRequest, run: int | None = None, size: int = 50) -> dict[str, Any]:
    """List open alerts, newest first; without ``run`` those of runs that are not archived, except notes."""
    return alert_list(run, max(1, min(size, 200)))


def alert_list(run_id: int | None, size: int) -> dict[str, Any]:
    """Return the content of ``AlertList``."""
    alerts, total = reads.open_alerts(run_id=run_id, limit=size)
    kinds = reads.alert_kinds()[0] if run_id is None else []
    return {"total": total, "items": alerts, "kinds": kinds}


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
