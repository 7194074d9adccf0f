"""Tasks by runs: the share of rollouts that solved each task in each run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.urls import reverse

from webapp.core.contexts.frame import Crumb, trajectory_url
from webapp.core.contexts.numbers import whole
from webapp.core.permissions import Role, shows_rollouts
from webapp.core.selectors import Page, page_of
from webapp.datasets.models.datasets import Task
from webapp.experiments.contexts.run_comparison import comparison_url, read_runs
from webapp.rollouts.models.trajectories import Trajectory
from webapp.rollouts.selectors import solved as reads
from webapp.rollouts.selectors.solved import Solved
from webapp.runs.models.runs import Run

PAGE_TASKS = 100
_LEVELS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRun:
    """One task in one run."""

    solved: Solved | None
    """None without a graded rollout."""
    level: int
    """Shade of its share, 0 … 4."""
    passed_url: str
    failed_url: str
    """URLs of the first passed and failed rollout; empty without one, or where they are hidden."""


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One task."""

    name: str
    cells: tuple[TaskRun, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TasksOfRunsContext:
    """Context of the page."""

    section: str
    crumbs: tuple[Crumb, ...]
    runs: tuple[Run, ...]
    chosen: str
    """Value of ``runs`` in the query string."""
    phase: str
    phases: tuple[tuple[str, str], ...]
    page: Page[str]
    rows: tuple[TaskRow, ...]
    missing: tuple[str, ...]
    params: Mapping[str, str]


def build_tasks_of_runs(texts: Sequence[str], params: Mapping[str, str], role: Role) -> TasksOfRunsContext:
    """Build the context; tasks on which the runs differ most come first.

    Args:
        texts: parts of the query string that name the runs.
        params: ``phase`` and ``page``.
        role: of the reader, who may not see every rollout.
    """
    runs, _, missing = read_runs(texts)
    numbers = [run.pk for run in runs]
    phases = reads.phases_of(numbers)
    phase = params.get("phase", "") if params.get("phase", "") in phases else ""
    solved = reads.solved_by_task(numbers, phase)
    page = page_of(ordered(solved), number=whole(params.get("page", "")) or 1, size=PAGE_TASKS)
    visible = [run.pk for run in runs if shows_rollouts(run, role)]
    first = reads.first_rollouts(visible, page.rows, phase)
    names = dict(Task.objects.filter(key__in=page.rows).values_list("key", "instance_id"))
    return TasksOfRunsContext(
        section="runs",
        crumbs=(
            Crumb("Runs", reverse("run-list")),
            Crumb("Comparison", comparison_url(numbers)),
            Crumb("Tasks"),
        ),
        runs=tuple(runs),
        chosen=",".join(map(str, numbers)),
        phase=phase,
        phases=tuple((name, name.replace("eval:", "evaluation: ")) for name in phases),
        page=page,
        rows=tuple(
            TaskRow(names.get(key, key), tuple(_cell(key, number, solved[key], first) for number in numbers))
            for key in page.rows
        ),
        missing=tuple(part[:40] for part in missing[:10]),
        params=dict(params),
    )


def ordered(solved: Mapping[str, Mapping[int, Solved]]) -> list[str]:
    """Return task keys, those with the largest differences between runs first, then those solved least."""

    def rank(key: str) -> tuple[float, float, str]:
        rates = [each.rate for each in solved[key].values()]
        return min(rates) - max(rates), sum(rates) / len(rates), key

    return sorted(solved, key=rank)


def tasks_document(texts: Sequence[str], phase: str = "") -> dict[str, Any]:
    """Return the table as JSON.

    Raises ValueError for no run, too many runs, or an unknown run.
    """
    runs, left_out, missing = read_runs(texts)
    if missing or left_out or not runs:
        raise ValueError(
            f"expected runs that exist, ten at most{f', not {missing[0][:40]!r}' if missing else ''}"
        )
    numbers = [run.pk for run in runs]
    solved = reads.solved_by_task(numbers, phase)
    return {
        "runs": numbers,
        "tasks": [
            {
                "task": key,
                "solved": [
                    solved[key][number].solved if number in solved[key] else None for number in numbers
                ],
                "graded": [solved[key][number].graded if number in solved[key] else 0 for number in numbers],
            }
            for key in ordered(solved)
        ],
    }


def _cell(
    key: str,
    number: int,
    solved: Mapping[int, Solved],
    first: Mapping[tuple[str, int, bool], Trajectory],
) -> TaskRun:
    own = solved.get(number)

    def url(is_passed: bool) -> str:
        row = first.get((key, number, is_passed))
        return trajectory_url(row.run_id, row.phase, row.iteration, row.task_key, row.index) if row else ""

    return TaskRun(
        solved=own,
        level=min(_LEVELS - 1, int(own.rate * _LEVELS)) if own else 0,
        passed_url=url(is_passed=True),
        failed_url=url(is_passed=False),
    )
