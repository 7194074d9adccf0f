"""Rows of runs, with their newest rewards and progress, as lists of runs show them."""

from __future__ import annotations

from dataclasses import dataclass

from webapp.runs.contexts.phase import Phase, phase_of
from webapp.runs.contexts.policy_label import policy_label
from webapp.runs.kinds import kind_of
from webapp.runs.models.iterations import Evaluation
from webapp.runs.models.runs import Run
from webapp.runs.selectors import runs as run_reads


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run."""

    run: Run
    policy: str
    """Model or script that acts; empty for kinds without one."""
    rewards: tuple[float | None, ...]
    done: int
    total: int
    stale: bool
    phase: Phase | None
    """Current work of a live run."""
    heldout: Evaluation | None
    """Newest evaluation on other than training tasks."""


def progress_of(run: Run) -> tuple[int, int]:
    """Return (done, total) in iterations where the run has them, else in its own progress units."""
    if run.total_iterations and not kind_of(run.kind).collects:
        ended = run.current_iteration if run.current_iteration is not None else 0
        return (run.total_iterations if run.state == "succeeded" else ended, run.total_iterations)
    return run.progress_done, run.progress_total


def run_rows(runs: list[Run], rewards: dict[int, list[float | None]]) -> tuple[RunRow, ...]:
    """Return the rows of runs with their rewards, given by run id."""
    heldout = run_reads.newest_heldout([run.pk for run in runs])
    return tuple(
        RunRow(
            run,
            policy_label(getattr(run, "policy", None)),
            tuple(rewards.get(run.pk, [])),
            *progress_of(run),
            run_reads.is_stale(run),
            phase_of(run),
            heldout.get(run.pk),
        )
        for run in runs
    )
