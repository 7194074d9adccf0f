"""Two evaluations compared task by task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlencode

from django.urls import reverse

from engine.errors import ConfigError, DatasetError
from engine.evaluation.comparison import Comparison, TaskChange, compare
from engine.evaluation.endings import Endings
from webapp.core.contexts.frame import Crumb, phase_label
from webapp.core.contexts.numbers import MOST_ID, whole
from webapp.evaluations.contexts.model_sizes import SizesPanel, build_sizes
from webapp.rollouts.selectors import attempts as reads
from webapp.rollouts.selectors.attempts import Point, StoredPoint
from webapp.runs.models.iterations import Evaluation
from webapp.runs.selectors import runs as run_reads

MAX_LISTED = 200
"""Gained or lost tasks that the page lists; the API has all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the evaluations."""

    point: Point
    stored: StoredPoint

    @property
    def label(self) -> str:
        """Return a readable label of the evaluation."""
        return point_label(self.point)

    @property
    def endings(self) -> Endings:
        """Return the numbers of attempts by ending."""
        return Endings.of_attempts(rollout.attempt for rollout in self.stored.attempts)

    @property
    def report_url(self) -> str:
        """Return the URL of the evaluation's report."""
        return reverse("evaluation-report", args=[self.point.run.pk, self.point.phase, self.point.iteration])


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRow:
    """A gained or lost task, with the URL of its rollouts on both sides."""

    change: TaskChange
    name: str
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Result of a comparison."""

    first: Side
    second: Side
    comparison: Comparison
    gained: tuple[ChangeRow, ...]
    lost: tuple[ChangeRow, ...]

    @property
    def open_sides(self) -> tuple[Side, ...]:
        """Return the evaluations that have not ended."""
        return tuple(side for side in (self.first, self.second) if not side.stored.ended)

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison, and the state and endings of each side."""
        sides = {
            name: {
                "ended": side.stored.ended,
                "num_open_tasks": side.stored.num_open_tasks,
                "endings": asdict(side.endings),
            }
            for name, side in (("first", self.first), ("second", self.second))
        }
        return sides | asdict(self.comparison)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareContext:
    """Context of the page; ``compared`` is None until two evaluations are chosen, and on an error."""

    section: str
    crumbs: tuple[Crumb, ...]
    choices: tuple[tuple[str, str], ...]
    """(``RUN:PHASE:ITERATION``, label) of evaluations that can be chosen."""
    first_key: str
    second_key: str
    compared: Compared | None
    most_listed: int
    error: str
    sizes: SizesPanel | None
    """Scores of models by size; None once two evaluations are chosen."""


def build_compare(params: Mapping[str, str]) -> CompareContext:
    """Build the context of the comparison page."""
    first_key, second_key = params.get("first", ""), params.get("second", "")
    compared, error = None, ""
    recent = reads.recent_evaluations()
    if first_key and second_key:
        try:
            compared = compare_evaluations(first_key, second_key)
        except (ConfigError, DatasetError) as problem:
            error = str(problem)
    return CompareContext(
        section="runs",
        crumbs=(Crumb("Runs", reverse("run-list")), Crumb("compare evaluations")),
        choices=_choices(recent, first_key, second_key),
        first_key=first_key,
        second_key=second_key,
        compared=compared,
        most_listed=MAX_LISTED,
        error=error,
        sizes=None if first_key and second_key else build_sizes(params),
    )


def compare_evaluations(first_key: str, second_key: str) -> Compared:
    """Compare two evaluations, each given as ``RUN:PHASE:ITERATION``.

    Raises:
        ConfigError: a key is malformed, or names nothing that has finished rollouts.
        DatasetError: the evaluations have no graded task in common.
    """
    first, second = _side(first_key), _side(second_key)
    comparison = compare(*([rollout.attempt for rollout in side.stored.attempts] for side in (first, second)))
    names = {
        rollout.attempt.task_id: rollout.task.instance_id
        for side in (first, second)
        for rollout in side.stored.attempts
    }
    query = compare_query(first.point, second.point)

    def rows(changes: tuple[TaskChange, ...]) -> tuple[ChangeRow, ...]:
        return tuple(
            ChangeRow(
                change=change,
                name=names[change.task_id],
                url=reverse("evaluation-compare-task", args=[change.task_id]) + query,
            )
            for change in changes
        )

    return Compared(
        first=first,
        second=second,
        comparison=comparison,
        gained=rows(comparison.gained),
        lost=rows(comparison.lost),
    )


def compare_query(first: Point, second: Point) -> str:
    """Return the query string of a comparison."""
    return f"?{urlencode({'first': first.key, 'second': second.key})}"


def point_label(point: Point) -> str:
    """Return a readable label of an evaluation."""
    return f"run {point.run.pk}, {phase_label(point.phase, point.iteration)}"


def find_point(key: str) -> Point:
    """Parse ``RUN:PHASE:ITERATION``. Raises ConfigError for a malformed key or an unknown run."""
    number, _, rest = key.partition(":")
    phase, _, at = rest.rpartition(":")
    run_id, iteration = whole(number, most=MOST_ID), whole(at)
    if run_id is None or iteration is None or not phase:
        raise ConfigError(f"'{key}' is no evaluation; expected RUN:PHASE:ITERATION, as 12:eval:heldout:40")
    run = run_reads.get_run(run_id)
    if run is None:
        raise ConfigError(f"run {run_id} does not exist; select a listed run")
    return Point(run=run, phase=phase, iteration=iteration)


def _side(key: str) -> Side:
    point = find_point(key)
    stored = reads.stored_point(point)
    if not stored.attempts:
        open_tasks = f" ({stored.num_open_tasks} tasks are not complete yet)" if stored.num_open_tasks else ""
        raise ConfigError(f"{key} has no finished rollouts{open_tasks}; select one with finished rollouts")
    return Side(point=point, stored=stored)


def _choices(evaluations: Sequence[Evaluation], *given: str) -> tuple[tuple[str, str], ...]:
    """Return recent evaluations, and those of the given keys that are not among them."""
    recent = {
        point.key: f"{point_label(point)} · {point.run.name}"
        for evaluation in evaluations
        for point in [
            Point(run=evaluation.run, phase=f"eval:{evaluation.name}", iteration=evaluation.iteration)
        ]
    }
    return tuple({**{key: key for key in given if key and key not in recent}, **recent}.items())
