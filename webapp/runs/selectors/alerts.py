"""Reads of alerts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from django.db.models import Count, F, Window
from django.db.models.functions import RowNumber

from webapp.rollouts.models.trajectories import Group
from webapp.runs.models.alerts import Alert


def open_alerts(*, run_id: int | None = None, limit: int = 20) -> tuple[list[Alert], int]:
    """Return the newest open alert of each kind; a kind is a run and a code.

    Returns:
        The alerts with ``num_alike``, newest first, and the number of kinds.
    """
    alerts = Alert.objects.filter(acknowledged_at__isnull=True)
    if run_id is not None:
        alerts = alerts.filter(run_id=run_id)
    else:
        alerts = alerts.filter(run__archived_at=None).exclude(severity="info")
    kind = [F("run_id"), F("code")]
    newest = alerts.annotate(
        alike=Window(Count("id"), partition_by=kind),
        place=Window(RowNumber(), partition_by=kind, order_by=[F("time").desc(), F("id").desc()]),
    ).filter(place=1)
    shown: list[Alert] = []
    for alert in newest.select_related("run").defer("run__config", "run__funnel").order_by("-time")[:limit]:
        alert.num_alike = alert.alike
        shown.append(alert)
    _find_groups(shown)
    return shown, alerts.order_by().values("run_id", "code").distinct().count()


def _find_groups(alerts: Iterable[Alert]) -> None:
    """Set the groups of alerts: for each task, the group nearest to the alert's iteration."""
    naming = [(alert, alert.iteration) for alert in alerts if alert.task_ids and alert.iteration is not None]
    if not naming:
        return
    iterations: dict[tuple[int, str], list[int]] = defaultdict(list)
    rows = Group.objects.filter(
        run__in={alert.run_id for alert, _ in naming},
        phase="train",
        task_key__in={key for alert, _ in naming for key in alert.task_ids},
    )
    for run, key, iteration in rows.values_list("run_id", "task_key", "iteration"):
        iterations[run, key].append(iteration)
    for alert, at in naming:
        candidates = [(key, iterations[alert.run_id, key]) for key in alert.task_ids]
        alert.groups = [(_nearest(stored, at), key) for key, stored in candidates if stored]


def _nearest(iterations: Iterable[int], at: int) -> int:
    return min(iterations, key=lambda iteration: abs(iteration - at))


def get_alert(alert_id: int) -> Alert | None:
    """Return one alert with its run."""
    return Alert.objects.select_related("run").filter(pk=alert_id).first()
