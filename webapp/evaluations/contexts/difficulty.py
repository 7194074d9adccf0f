"""An evaluation by the difficulty of its tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.evaluation.breakdown import Part, parts
from webapp.rollouts.selectors.attempts import StoredAttempt

_LABELS = {
    "minutes": {15.0: "under 15 min", 60.0: "15 min to 1 h", 240.0: "1 to 4 h", 480.0: "over 4 h"},
    "level": {1.0: "easy", 2.0: "medium", 3.0: "hard"},
}
"""Labels of the values of difficulty measures of SWE-bench Verified and Harbor."""
_MOST_VALUES = 4
"""Maximum distinct values of a measure with a part each; more are divided into thirds."""
_UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class DifficultyTable:
    """Solve rates by one measure of difficulty, the easiest part first."""

    measure: str
    parts: tuple[Part, ...]


def difficulty_tables(stored: Sequence[StoredAttempt]) -> tuple[DifficultyTable, ...]:
    """Return a table per measure with at least two parts, by name; labelled measures first."""
    tasks = {rollout.attempt.task_id: rollout.task.difficulty for rollout in stored}
    attempts = [rollout.attempt for rollout in stored]
    tables = []
    for measure in sorted({name for known in tasks.values() for name in known}, key=_order):
        values = {task: known[measure] for task, known in tasks.items() if measure in known}
        order = _parts_of(measure, sorted(values.values()))
        if len(order) < 2:
            continue
        names = {task: _name(order, values.get(task)) for task in tasks}
        places = {name: place for place, (_, name) in enumerate(order)}
        table = sorted(parts(attempts, names), key=lambda part: places.get(part.name, len(places)))
        tables.append(DifficultyTable(measure=measure.replace("_", " "), parts=tuple(table)))
    return tuple(tables)


def _order(measure: str) -> tuple[bool, str]:
    return measure not in _LABELS, measure


def _parts_of(measure: str, ordered: Sequence[float]) -> list[tuple[float, str]]:
    """Return the upper bound and the name of each part, in ascending order."""
    labels: Mapping[float, str] = _LABELS.get(measure, {})
    values = sorted(set(ordered))
    if len(values) <= _MOST_VALUES:
        return [(value, labels.get(value, f"{value:g}")) for value in values]
    bounds = sorted({ordered[len(ordered) * third // 3 - 1] for third in (1, 2, 3)})
    lows = [ordered[0], *(next(value for value in values if value > bound) for bound in bounds[:-1])]
    return [
        (high, f"{low:g} to {high:g}" if low < high else f"{high:g}")
        for low, high in zip(lows, bounds, strict=True)
    ]


def _name(order: Sequence[tuple[float, str]], value: float | None) -> str:
    if value is None:
        return _UNKNOWN
    return next(name for bound, name in order if value <= bound)
