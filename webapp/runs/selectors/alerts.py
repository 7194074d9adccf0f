"""Reads of alerts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from django.db.models import Count, F, Window
from django.db.models.functions import RowNumber

from webapp.rollouts.models.trajectories import Group
from webapp.runs.models.alerts import Alert


def open_alerts(*, run_id: int | None = None, limit: int = 20) -> tuple[list[Alert], int]:
    """Return the alerts nobody has acknowledged by kind, the newest of a run's kind for all of them.

    Returns:
        the newest of each kind, with ``num_alike``, newest first, and how many kinds there are.
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
    found: list[Alert] = []
    for alert in newest.select_related("run").defer("run__config").order_by("-time")[:limit]:
        alert.num_alike = alert.alike
        found.append(alert)
    _find_groups(found)
    return found, alerts.order_by().values("run_id", "code").distinct().count()


def _find_groups(alerts: Iterable[Alert]) -> None:
    """Set the groups that alerts name: of several of a task, those nearest to the alert's iteration."""
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
        known = [(key, iterations[alert.run_id, key]) for key in alert.task_ids]
        alert.groups = [(_nearest(found, at), key) for key, found in known if found]


def _nearest(iterations: Iterable[int], at: int) -> int:
    return min(iterations, key=lambda iteration: abs(iteration - at))


def get_alert(alert_id: int) -> Alert | None:
    """Return one alert with its run."""
    return Alert.objects.select_related("run").filter(pk=alert_id).first()
