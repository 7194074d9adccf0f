"""Best@K curves of a table of rollouts.

for curve in curves(candidates):
    print(curve.rule, [(point.k, point.rate) for point in curve.points])
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from engine.errors import ConfigError, DatasetError, MissingScoreError
from engine.verifiers.selection.candidates import Candidate, by_task, require_scores
from engine.verifiers.selection.rules import RULES, Rule, adapted


class Short(StrEnum):
    """Treatment of tasks with fewer than K rollouts."""

    REFUSE = "refuse"
    """A K above the rollouts of any task is an error."""
    ALL = "all"
    """Such a task counts with all rollouts it has."""
    LEAVE_OUT = "leave_out"
    """Tasks with fewer rollouts than the largest K are left out at every K."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """Best@K of a rule at one K."""

    k: int
    rate: float
    """Mean over tasks of the exact probability that the selected one of K rollouts is resolved."""
    standard_error: float | None
    """Standard error of ``rate`` over tasks like these; None with a single task."""
    num_short: int
    """Tasks with fewer than K rollouts, of which all were used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Best@K of one rule."""

    rule: str
    num_tasks: int
    points: tuple[CurvePoint, ...]


def curves(
    candidates: Iterable[Candidate],
    rules: Sequence[Rule] | None = None,
    ks: Sequence[int] | None = None,
    *,
    short: Short = Short.REFUSE,
) -> list[Curve]:
    """Compute the Best@K curves of rules over the same rollouts.

    Args:
        candidates: graded rollouts of any number of tasks.
        rules: None is every rule for which the table has scores.
        ks: None is 1 … the smallest number of rollouts of any task.
        short: treatment of tasks with fewer than K rollouts.

    Raises:
        ConfigError: a K is below 1, or above the rollouts of a task (``short`` is ``refuse``) or of every
            task (``leave_out``).
        DatasetError: there are no rollouts, or one occurs twice.
        MissingScoreError: a rollout is not graded, or lacks a score that a rule needs.
    """
    candidates = list(candidates)
    tasks = by_task(candidates)
    if not tasks:
        raise DatasetError("there are no rollouts; a curve needs at least one graded rollout")
    ks = sorted(set(ks)) if ks is not None else range(1, min(map(len, tasks.values())) + 1)
    tasks = _with_rollouts(tasks, ks, short)
    if rules is None:
        rules = available_rules(candidates)
    rules = adapted(rules, candidates)
    counted = [member for members in tasks.values() for member in members]
    for rule in rules:
        require_scores(counted, rule.needs, rule.name)
    return [_curve(rule, tasks, ks) for rule in rules]


def possible_curves(
    candidates: Iterable[Candidate],
    rules: Sequence[Rule],
    ks: Sequence[int] | None = None,
    *,
    short: Short = Short.REFUSE,
) -> tuple[list[Curve], list[str]]:
    """Compute the curves of the rules that have all their scores; arguments as for ``curves``.

    Returns:
        The curves, and the reason of each rule that lacks a score.

    Raises:
        ConfigError, DatasetError: as ``curves`` does.
    """
    candidates = list(candidates)
    computed: list[Curve] = []
    missing: list[str] = []
    for rule in rules:
        try:
            computed += curves(candidates, [rule], ks, short=short)
        except MissingScoreError as error:
            missing.append(str(error))
    return computed, missing


def unscored_tasks(candidates: Sequence[Candidate], rules: Sequence[Rule]) -> frozenset[str]:
    """Return the tasks of which a rollout lacks a score that any of the rules needs.

    Without these tasks, the curves of all the rules cover the same tasks.
    """
    fields = {field for rule in adapted(rules, candidates) for field in rule.needs}
    return frozenset(
        candidate.task_id
        for candidate in candidates
        if any(getattr(candidate, field) is None for field in fields)
    )


def available_rules(candidates: Sequence[Candidate]) -> list[Rule]:
    """Return the rules of which every score occurs in the table, even if only for some rollouts."""
    known = {field for rule in RULES.values() for field in rule.needs if _occurs(candidates, field)}
    return [rule for rule in adapted(RULES.values(), candidates) if known.issuperset(rule.needs)]


def _occurs(candidates: Sequence[Candidate], field: str) -> bool:
    return any(getattr(candidate, field) is not None for candidate in candidates)


def _with_rollouts(
    tasks: dict[str, list[Candidate]], ks: Sequence[int], short: Short
) -> dict[str, list[Candidate]]:
    """Return the tasks that count. Raises ConfigError."""
    if not ks or ks[0] < 1:
        raise ConfigError(f"K = {list(ks)}; give at least one K, each of at least 1")
    enough = {task: members for task, members in tasks.items() if len(members) >= ks[-1]}
    if short is Short.ALL or len(enough) == len(tasks):
        return tasks
    if short is Short.LEAVE_OUT and enough:
        return enough
    if not enough:
        most = max(map(len, tasks.values()))
        advice = f"lower K to at most {most}" + (
            "" if short is Short.LEAVE_OUT else ", or count all they have"
        )
    else:
        advice = "lower K, leave these tasks out, or count all they have"
    task = next(task for task in tasks if task not in enough)
    raise ConfigError(
        f"K = {ks[-1]} is more than the rollouts of {len(tasks) - len(enough)} of {len(tasks)} tasks, such "
        f"as {task} with {len(tasks[task])}; {advice}"
    )


def _curve(rule: Rule, tasks: dict[str, list[Candidate]], ks: Sequence[int]) -> Curve:
    rates = []
    for members in tasks.values():
        sizes = dict.fromkeys(min(k, len(members)) for k in ks)
        exact = dict(zip(sizes, rule.expected(members, list(sizes)), strict=True))
        rates.append([exact[min(k, len(members))] for k in ks])
    points = tuple(
        CurvePoint(
            k=k,
            rate=statistics.fmean(column),
            standard_error=statistics.stdev(column) / math.sqrt(len(column)) if len(column) > 1 else None,
            num_short=sum(len(members) < k for members in tasks.values()),
        )
        for k, column in zip(ks, zip(*rates, strict=True), strict=True)
    )
    return Curve(rule=rule.name, num_tasks=len(tasks), points=points)
