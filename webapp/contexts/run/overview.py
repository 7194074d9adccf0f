"""The overview: what needs attention, what is running, what has finished."""

from __future__ import annotations

from dataclasses import dataclass

from django.utils import timezone

from webapp.contexts.frame import Crumb
from webapp.contexts.run.collection import KINDS
from webapp.contexts.run.phase import Phase, phase_of
from webapp.contexts.run.policy_label import policy_label
from webapp.models import Alert, Run
from webapp.permissions import Role, may_change
from webapp.selectors.run import alerts as alert_reads
from webapp.selectors.run import runs as run_reads


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run in one of the bands."""

    run: Run
    policy: str
    """Model or script that acts; empty for kinds without one."""
    rewards: tuple[float | None, ...]
    done: int
    total: int
    stale: bool
    phase: Phase | None
    """Current work of a live run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewContext:
    """The page."""

    section: str
    crumbs: tuple[Crumb, ...]
    alerts: tuple[Alert, ...]
    num_alerts: int
    troubled: tuple[RunRow, ...]
    active: tuple[RunRow, ...]
    finished: tuple[RunRow, ...]
    can_operate: bool
    changeable: frozenset[int]
    """Runs of the page that its viewer may change."""


def progress_of(run: Run) -> tuple[int, int]:
    """(done, total) in iterations where the run has them, else in its own progress units."""
    if run.total_iterations and run.kind not in KINDS:
        ended = run.current_iteration if run.current_iteration is not None else 0
        return (run.total_iterations if run.state == "succeeded" else ended, run.total_iterations)
    return run.progress_done, run.progress_total


def run_rows(runs: list[Run], rewards: dict[int, list[float | None]]) -> tuple[RunRow, ...]:
    """Return rows for a band."""
    return tuple(
        RunRow(
            run,
            policy_label(getattr(run, "policy", None)),
            tuple(rewards.get(run.pk, [])),
            *progress_of(run),
            run_reads.is_stale(run),
            phase_of(run),
        )
        for run in runs
    )


def build_overview(*, role: Role, user_id: int | None) -> OverviewContext:
    """Return the page as a user with a role sees it; a fixed number of queries."""
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
