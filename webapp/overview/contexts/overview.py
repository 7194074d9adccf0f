"""Overview page: open alerts, and troubled, active and finished runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.utils import timezone

from webapp.core.contexts.frame import Crumb
from webapp.core.permissions import Role, may_change
from webapp.runs.contexts.rows import COLUMNS, RunRow, run_rows
from webapp.runs.models.alerts import Alert
from webapp.runs.selectors import alerts as alert_reads
from webapp.runs.selectors import runs as run_reads
from webapp.runs.selectors.alerts import AlertKind

MOST_KINDS = 10
MOST_ALERTS = 20
"""Largest number of alerts of each kind."""
_COLUMNS = tuple(
    COLUMNS[key] for key in ("state", "kind", "model", "dataset", "progress", "gain", "trend", "started")
)


@dataclass(frozen=True, slots=True)
class ShownKind:
    """Open alerts of one code, with the newest of each run."""

    kind: AlertKind
    alerts: tuple[Alert, ...]
    """Newest first; runs beyond ``MOST_ALERTS`` are left out."""

    @property
    def newest(self) -> Alert:
        """Return the newest alert."""
        return self.alerts[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewContext:
    """Overview page."""

    section: str
    crumbs: tuple[Crumb, ...]
    kinds: tuple[ShownKind, ...]
    """Kinds of open alerts, the newest first."""
    num_kinds: int
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
    rewards = run_reads.reward_series({run.pk for run in [*active, *finished]})
    kinds, num_kinds = alert_reads.alert_kinds(limit=MOST_KINDS)
    codes = [kind.code for kind in kinds]
    alerts = alert_reads.open_alerts(codes=codes, limit=MOST_ALERTS)[0] if kinds else []
    return OverviewContext(
        section="overview",
        crumbs=(Crumb("Overview"),),
        kinds=_shown(kinds, alerts),
        num_kinds=num_kinds,
        troubled=run_rows(troubled, {}, columns=()),
        active=run_rows(active, rewards, columns=_COLUMNS),
        finished=run_rows(finished, rewards, columns=_COLUMNS),
        can_operate=role.includes(Role.OPERATOR),
        changeable=frozenset(
            run.pk for run in [*troubled, *(alert.run for alert in alerts)] if may_change(run, role, user_id)
        ),
    )


def _shown(kinds: Sequence[AlertKind], alerts: Sequence[Alert]) -> tuple[ShownKind, ...]:
    by_code: dict[str, list[Alert]] = {kind.code: [] for kind in kinds}
    for alert in alerts:
        by_code[alert.code].append(alert)
    return tuple(ShownKind(kind, tuple(by_code[kind.code])) for kind in kinds if by_code[kind.code])
