"""Reads of alerts."""

from __future__ import annotations

from webapp.models import Alert


def open_alerts(*, run_id: int | None = None, limit: int = 20) -> tuple[list[Alert], int]:
    """Return alerts nobody has acknowledged, newest first, and how many there are."""
    alerts = Alert.objects.filter(acknowledged_at__isnull=True)
    if run_id is not None:
        alerts = alerts.filter(run_id=run_id)
    else:
        alerts = alerts.filter(run__archived_at=None).exclude(severity="info")
    return list(alerts.select_related("run").defer("run__config").order_by("-time")[:limit]), alerts.count()


def get_alert(alert_id: int) -> Alert | None:
    """Return one alert with its run."""
    return Alert.objects.select_related("run").filter(pk=alert_id).first()
