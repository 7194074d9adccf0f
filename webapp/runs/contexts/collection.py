"""Progress of a collection or evaluation of rollouts, for the header of its run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.urls import reverse

from engine.evaluation.calls import CallCounts
from engine.evaluation.endings import Endings
from engine.types import RunKind, RunState
from webapp.datasets.selectors.difficulty import SolveRate
from webapp.runs.kinds import kind_of
from webapp.runs.models.runs import Run
from webapp.runs.selectors import runs as run_reads
from webapp.runs.selectors.iterations import LiveCounts

ENDED = (RunState.SUCCEEDED, RunState.FAILED, RunState.STOPPED)
SPEND_LIMIT = "spend_limit"
"""``stopped_by`` in the summary of a run that reached its spend limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionView:
    """Numbers over all attempts; None where nothing was reported yet."""

    done: int
    total: int
    """0 until the first report."""
    running: int
    grading: int
    excluded: int
    """Rollouts that infrastructure lost."""
    solve: SolveRate
    endings: Endings | None
    """None before the first, and in progress that earlier versions reported."""
    goal: str
    """Word for a rewarded rollout: solved, passed or reproduced."""
    per_minute: float | None
    """Rollouts per minute over the last ten minutes; of an ended run over its whole time."""
    steps: int
    prompt_tokens: int
    generated_tokens: int
    calls: CallCounts | None
    """Tool calls in the responses; None until it has ended."""
    cost: float | None
    spend_limit: float | None
    resumed_at: int | None
    """Finished rollouts kept by the newest attempt; None in the first one."""
    parts: tuple[tuple[str, str, float], ...]
    """(label, css class, amount) of the bar."""
    waits: str
    """Reason why there are no rollouts yet; empty once there are."""
    is_evaluation: bool
    spent: bool
    """Whether the spend limit ended it."""
    rest_url: str
    """Form of a run that continues where the spend limit ended this one."""
    exportable: bool


def build_collection(run: Run, counts: LiveCounts) -> CollectionView | None:
    """Return the progress of a run that samples a policy once; None for others, and for imported ones."""
    state: Mapping[str, Any] = run.collection
    if not kind_of(run.kind).collects or (not state and counts.total and run.state in ENDED):
        return None
    is_running = run.state == RunState.RUNNING
    solve = SolveRate(solved=state.get("solved", 0), graded=state.get("graded", 0))
    excluded, endings = state.get("lost", 0), state.get("endings", {})
    running, grading = (state.get(name, 0) if is_running else 0 for name in ("running", "grading"))
    resumed_at = run_reads.rollouts_kept(run) if run.epoch > 1 else None
    return CollectionView(
        done=max(run.progress_done, resumed_at or 0),
        total=run.progress_total,
        running=running,
        grading=grading,
        excluded=excluded,
        solve=solve,
        endings=Endings.of(endings, excluded=excluded) if any(endings.values()) else None,
        goal=goal_of(run),
        per_minute=_per_minute(run),
        steps=state.get("steps", 0),
        prompt_tokens=state.get("prompt_tokens", 0),
        generated_tokens=state.get("generated_tokens", 0),
        calls=CallCounts.of_summary(run.summary),
        cost=max((cost for cost in (state.get("cost"), counts.cost) if cost is not None), default=None),
        spend_limit=run.config.get("policy", {}).get("spend_limit"),
        resumed_at=resumed_at,
        parts=_parts(goal_of(run), solve, excluded, running, grading, run.progress_total),
        waits="" if counts.total else _waits(run),
        is_evaluation=run.kind == RunKind.EVALUATE,
        spent=run.state == RunState.STOPPED and run.summary.get("stopped_by") == SPEND_LIMIT,
        rest_url=_rest_url(run),
        exportable=solve.graded > 0,
    )


def _per_minute(run: Run) -> float | None:
    if run.state in ENDED and run.running_at and run.finished_at and run.progress_done:
        seconds = (run.finished_at - run.running_at).total_seconds()
        return 60 * run.progress_done / seconds if seconds > 0 else None
    per_hour = run.collection.get("per_hour") if run.state == RunState.RUNNING else None
    return per_hour / 60 if per_hour is not None else None


def goal_of(run: Run) -> str:
    """Return the word for a rewarded rollout, by what it does: write a test, check a row or solve a task."""
    if run.writes_tests:
        return "reproduced"
    return "passed" if run.checks_rows else "solved"


def _parts(
    goal: str, solve: SolveRate, excluded: int, running: int, grading: int, total: int
) -> tuple[tuple[str, str, float], ...]:
    left = max(0, total - solve.graded - excluded - running - grading)
    return (
        (goal, "passed", solve.solved),
        (f"not {goal}", "failed", solve.graded - solve.solved),
        ("excluded: lost to infrastructure", "infra", excluded),
        ("running", "running", running),
        ("being graded", "grading", grading),
        ("remaining", "open", left or (0 if total else 1)),
    )


def _waits(run: Run) -> str:
    match run.state:
        case RunState.DRAFT:
            return "No rollouts yet. Start the run."
        case RunState.QUEUED | RunState.STARTING:
            return "No rollouts yet. The run is waiting for its process."
        case state if state in ENDED:
            return "The run ended before its first rollout."
        case _:
            return "The first rollouts appear here once their sandboxes have started."


def _rest_url(run: Run) -> str:
    """Return the form of a clone; a collection's skips the finished rollouts of this run."""
    settings = {"clone": str(run.pk)}
    if run.kind == RunKind.ROLLOUT:
        settings |= {"collection.skip": "finished", "collection.skip_runs": str(run.pk)}
    return f"{reverse('run-new')}?{urlencode(settings)}#s-policy.spend_limit"
