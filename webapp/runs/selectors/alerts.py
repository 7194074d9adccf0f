"""Reads of alerts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from django.db.models import Count, F, Max, QuerySet, Window
from django.db.models.functions import RowNumber

from webapp.rollouts.models.trajectories import Group
from webapp.runs.models.alerts import Alert


@dataclass(frozen=True, slots=True)
class AlertKind:
    """Open alerts of one code."""

    code: str
    num_alerts: int
    num_runs: int


def alert_kinds(*, limit: int = 20) -> tuple[list[AlertKind], int]:
    """Return the codes of open alerts of runs that are not archived, the newest first, and their number."""
    rows = _open(None).order_by().values("code")
    kinds = rows.annotate(number=Count("id"), runs=Count("run", distinct=True), newest=Max("time"))
    newest = kinds.order_by("-newest", "code").values_list("code", "number", "runs")[:limit]
    return [AlertKind(*row) for row in newest], rows.distinct().count()


def _open(run_id: int | None) -> QuerySet[Alert]:
    alerts = Alert.objects.filter(acknowledged_at__isnull=True)
    if run_id is not None:
        return alerts.filter(run_id=run_id)
    return alerts.filter(run__archived_at=None).exclude(severity="info")


def open_alerts(
    *, run_id: int | None = None, codes: Collection[str] = (), limit: int = 20
) -> tuple[list[Alert], int]:
    """Return the newest open alert of each run and code.

    Args:
        run_id: only alerts of this run; None: those of runs that are not archived, except notes.
        codes: only alerts of these codes; empty: of all.
        limit: greatest number of alerts, for each of ``codes`` if there are any.

    Returns:
        The alerts with ``num_alike``, newest first, and the number of pairs of a run and a code.
    """
    alerts = _open(run_id)
    if codes:
        alerts = alerts.filter(code__in=codes)
    kind = [F("run_id"), F("code")]
    newest = alerts.annotate(
        alike=Window(Count("id"), partition_by=kind),
        place=Window(RowNumber(), partition_by=kind, order_by=[F("time").desc(), F("id").desc()]),
    ).filter(place=1)
    parts = [newest.filter(code=code) for code in codes] or [newest]
    cut = [part.order_by("-time").values_list("pk", "alike")[:limit] for part in parts]
    alike = dict(cut[0].union(*cut[1:], all=True))
    shown = list(
        Alert.objects.filter(pk__in=alike)
        .select_related("run")
        .defer("run__config", "run__funnel")
        .order_by("-time")
    )
    for alert in shown:
        alert.num_alike = alike[alert.pk]
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
