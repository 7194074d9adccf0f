"""Reads of sandboxes: pools and their history, open leases with rollouts, failures, ingest lag."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connection
from django.db.models import OuterRef, Q, QuerySet, Subquery
from django.utils import timezone

from engine.types import RunState
from webapp.rollouts.models.trajectories import Trajectory
from webapp.runs.models.events import Event
from webapp.runs.models.runs import Run
from webapp.sandboxes.models import Pool, Reaper, Sandbox

LIVE_STATES = (RunState.STARTING, RunState.RUNNING, RunState.PAUSED, RunState.STOPPING)
_IN_USE_FOR = timedelta(days=1)
_HISTORY_POINTS = 450
"""Maximum number of snapshots per run in a chart; continuous change fills it in 15 minutes."""


def pools(run_id: int | None = None) -> list[Pool]:
    """Return the pools of live runs, newest first, or the pool of one run in any state."""
    rows = Pool.objects.select_related("run").defer("run__config", "run__summary", "run__funnel")
    rows = rows.filter(run__state__in=LIVE_STATES) if run_id is None else rows.filter(run_id=run_id)
    return list(rows.order_by("-run_id"))


@dataclass(frozen=True, slots=True)
class LiveSandbox:
    """Open lease and the rollout that uses it; empty fields without a rollout."""

    sandbox: Sandbox
    phase: str = ""
    iteration: int = 0
    task_key: str = ""
    index: int = 0


def open_sandboxes(run_id: int | None = None, *, limit: int = 100) -> tuple[list[LiveSandbox], int]:
    """Return the oldest open leases and the total number of open leases; three queries."""
    rows = Sandbox.objects.filter(state__in=Sandbox.OPEN, run__state__in=LIVE_STATES)
    if run_id is not None:
        rows = rows.filter(run_id=run_id)
    shown = list(rows.order_by("leased_at", "id")[:limit])
    rollouts = _rollouts(shown)
    sandboxes = [
        LiveSandbox(sandbox, *rollouts.get((sandbox.run_id, sandbox.sandbox_id), ())) for sandbox in shown
    ]
    return sandboxes, rows.count()


def _rollouts(sandboxes: Sequence[Sandbox]) -> dict[tuple[int, str], tuple[str, int, str, int]]:
    """Map (run, sandbox) to phase, iteration, task key and index of the live rollout in it."""
    rows = Trajectory.objects.filter(
        run_id__in={sandbox.run_id for sandbox in sandboxes},
        state=Trajectory.State.RUNNING,
        sandbox_id__in=[sandbox.sandbox_id for sandbox in sandboxes if sandbox.sandbox_id],
    ).values_list("run_id", "sandbox_id", "phase", "iteration", "task_key", "index")
    return {(row[0], row[1]): (row[2], row[3], row[4], row[5]) for row in rows}


def failed_sandboxes(run_id: int | None = None, *, limit: int = 20) -> tuple[list[Sandbox], int]:
    """Return the newest failed sandboxes and the total number of failed sandboxes."""
    rows = Sandbox.objects.filter(state=Sandbox.State.FAILED)
    if run_id is not None:
        rows = rows.filter(run_id=run_id)
    return list(rows.order_by("-ended_at", "-id")[:limit]), rows.count()


def reapers() -> list[Reaper]:
    """Return one row per backend that was ever reaped."""
    return list(Reaper.objects.all())


@dataclass(frozen=True, slots=True)
class PoolPoint:
    """Counts of a pool at one point in time."""

    run_id: int
    time: float
    """Unix time, seconds."""
    wanted: int
    starting: int
    live: int
    idle: int


def pool_history(run_ids: Sequence[int]) -> list[PoolPoint]:
    """Return the newest snapshots of several runs' pools, oldest first, with one query."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT e.run_id, extract(epoch FROM e.time)::float, (e.payload->>'wanted')::int,"
            " (e.payload->>'starting')::int, (e.payload->>'live')::int,"
            " coalesce((e.payload->>'idle')::int, 0)"
            " FROM unnest(%s::bigint[]) AS r(id) CROSS JOIN LATERAL"
            " (SELECT * FROM webapp_event WHERE run_id = r.id AND type = 'pool_status'"
            " ORDER BY seq DESC LIMIT %s) e ORDER BY e.time, e.run_id, e.seq",
            [list(run_ids), _HISTORY_POINTS],
        )
        return [PoolPoint(*row) for row in cursor.fetchall()]


def configs_in_use() -> list[dict[str, Any]]:
    """Return the ``sandbox`` sections of runs that are live or ended within a day."""
    recent: QuerySet[Run] = Run.objects.filter(
        Q(state__in=LIVE_STATES) | Q(finished_at__gte=timezone.now() - _IN_USE_FOR)
    )
    elsewhere = recent.filter(config__sandbox__backend__in=["docker", "kubernetes"])
    return [{"sandbox": section} for section in elsewhere.values_list("config__sandbox", flat=True)]


@dataclass(frozen=True, slots=True)
class Lag:
    """Delay of a live run's stored events behind its engine."""

    run_id: int
    events: int
    seconds: float
    """Age of the newest stored event, seconds; 0 if no event is missing."""
    heartbeat_age: float | None


def ingest_lags(now: datetime | None = None) -> list[Lag]:
    """Return the ingest lag of every live run, with one query."""
    now = now or timezone.now()
    newest = Event.objects.filter(run=OuterRef("pk"), seq=OuterRef("last_seq")).values("time")[:1]
    lags = []
    for run in (
        Run.objects.filter(state__in=LIVE_STATES)
        .annotate(stored_at=Subquery(newest))
        .order_by("pk")
        .values("pk", "engine_seq", "last_seq", "heartbeat_at", "stored_at")
    ):
        missing = max(0, run["engine_seq"] - run["last_seq"])
        behind = _seconds_since(run["stored_at"], now) if missing else 0.0
        lags.append(Lag(run["pk"], missing, behind or 0.0, _seconds_since(run["heartbeat_at"], now)))
    return lags


def _seconds_since(moment: datetime | None, now: datetime) -> float | None:
    return None if moment is None else max(0.0, (now - moment).total_seconds())
