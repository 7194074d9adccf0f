"""Two evaluations compared task by task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from django.urls import reverse

from engine.errors import ConfigError, DatasetError
from engine.evaluation.attempts import Attempt
from engine.evaluation.comparison import Comparison, TaskChange, compare
from webapp.contexts.frame import Crumb, group_url, phase_label
from webapp.contexts.numbers import MOST_ID, whole
from webapp.models import Run
from webapp.selectors import attempts as reads
from webapp.selectors import runs as run_reads

MAX_LISTED = 200
"""Gained or lost tasks that the page lists; the API has all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the evaluations."""

    run: Run
    phase: str
    iteration: int

    @property
    def key(self) -> str:
        """Return the evaluation as ``RUN:PHASE:ITERATION``."""
        return f"{self.run.pk}:{self.phase}:{self.iteration}"

    @property
    def label(self) -> str:
        """Return the evaluation in words."""
        return f"run {self.run.pk}, {phase_label(self.phase, self.iteration)}"

    @property
    def report_url(self) -> str:
        """Return the address of its report."""
        return reverse("evaluation-report", args=[self.run.pk, self.phase, self.iteration])


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRow:
    """A gained or lost task with the addresses of its rollouts on both sides."""

    change: TaskChange
    name: str
    first_url: str
    second_url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Result of a comparison."""

    first: Side
    second: Side
    comparison: Comparison
    gained: tuple[ChangeRow, ...]
    lost: tuple[ChangeRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareContext:
    """The page; ``compared`` is None until two evaluations are chosen, or where ``error`` says why not."""

    section: str
    crumbs: tuple[Crumb, ...]
    choices: tuple[tuple[str, str], ...]
    """(``RUN:PHASE:ITERATION``, label) of evaluations that can be chosen."""
    first_key: str
    second_key: str
    compared: Compared | None
    most_listed: int
    error: str


def build_compare(params: Mapping[str, str]) -> CompareContext:
    """Return the page."""
    first_key, second_key = params.get("first", ""), params.get("second", "")
    compared, error = None, ""
    if first_key and second_key:
        try:
            compared = compare_evaluations(first_key, second_key)
        except (ConfigError, DatasetError) as problem:
            error = str(problem)
    return CompareContext(
        section="runs",
        crumbs=(Crumb("Runs", reverse("run-list")), Crumb("compare evaluations")),
        choices=_choices(first_key, second_key),
        first_key=first_key,
        second_key=second_key,
        compared=compared,
        most_listed=MAX_LISTED,
        error=error,
    )


def compare_evaluations(first_key: str, second_key: str) -> Compared:
    """Compare two evaluations, each given as ``RUN:PHASE:ITERATION``.

    Raises:
        ConfigError: a key is malformed, or names nothing that has finished rollouts.
        DatasetError: the evaluations have no graded task in common.
    """
    (first, before, names), (second, after, more_names) = _side(first_key), _side(second_key)
    found = compare(before, after)
    names |= more_names

    def rows(changes: tuple[TaskChange, ...]) -> tuple[ChangeRow, ...]:
        return tuple(
            ChangeRow(
                change=change,
                name=names[change.task_id],
                first_url=group_url(first.run.pk, first.phase, first.iteration, change.task_id),
                second_url=group_url(second.run.pk, second.phase, second.iteration, change.task_id),
            )
            for change in changes
        )

    return Compared(
        first=first, second=second, comparison=found, gained=rows(found.gained), lost=rows(found.lost)
    )


def _side(key: str) -> tuple[Side, list[Attempt], dict[str, str]]:
    """Return an evaluation with its attempts and the names of its tasks."""
    number, _, rest = key.partition(":")
    phase, _, at = rest.rpartition(":")
    run_id, iteration = whole(number, most=MOST_ID), whole(at)
    if run_id is None or iteration is None or not phase:
        raise ConfigError(f"'{key}' is no evaluation; write RUN:PHASE:ITERATION, such as 12:eval:heldout:40")
    run = run_reads.get_run(run_id)
    attempts, names = reads.outcomes(run_id, phase=phase, iteration=iteration)
    if run is None or not attempts:
        raise ConfigError(f"{key} has no finished rollouts; choose an evaluation or iteration that has")
    return Side(run=run, phase=phase, iteration=iteration), attempts, names


def _choices(*given: str) -> tuple[tuple[str, str], ...]:
    """Return recent evaluations, and what was given where it is none of them."""
    recent = {
        side.key: f"{side.label} · {side.run.name}"
        for evaluation in reads.recent_evaluations()
        for side in [
            Side(run=evaluation.run, phase=f"eval:{evaluation.name}", iteration=evaluation.iteration)
        ]
    }
    return tuple({**{key: key for key in given if key and key not in recent}, **recent}.items())
