"""Overview page: open alerts, and troubled, active and finished runs."""

from __future__ import annotations

from dataclasses import dataclass

from django.utils import timezone

from webapp.core.contexts.frame import Crumb
from webapp.core.permissions import Role, may_change
from webapp.runs.contexts.rows import RunRow, run_rows
from webapp.runs.models.alerts import Alert
from webapp.runs.selectors import alerts as alert_reads
from webapp.runs.selectors import runs as run_reads


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewContext:
    """Overview page."""

    section: str
    crumbs: tuple[Crumb, ...]
    alerts: tuple[Alert, ...]
    num_alerts: int
    troubled: tuple[RunRow, ...]
    active: tuple[RunRow, ...]
    finished: tuple[RunRow, ...]
    can_operate: bool
    changeable: frozenset[int]
    """Ids of the shown runs that the user may change."""


def build_overview(*, role: Role, user_id: int | None) -> OverviewContext:
    """Return the overview for a role and a user, with a fixed number of queries."""
    troubled = run_reads.troubled_runs(now=timezone.now())
    active = run_reads.active_runs()
    finished = run_reads.finished_runs()
    rewards = run_reads.reward_series({run.pk for run in [*troubled, *active, *finished]})
    alerts, num_alerts = alert_reads.open_alerts(limit=10)
    return OverviewContext(
        section="overview",
        crumbs=(Crumb("Overview"),),
        alerts=tuple(alerts),
        num_alerts=num_alerts,
        troubled=run_rows(troubled, rewards),
        active=run_rows(active, rewards),
        finished=run_rows(finished, rewards),
        can_operate=role.includes(Role.OPERATOR),
        changeable=frozenset(
            run.pk for run in [*troubled, *(alert.run for alert in alerts)] if may_change(run, role, user_id)
        ),
    )
