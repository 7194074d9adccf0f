"""Best@K curves of a table of rollouts.

for curve in curves(candidates):
    print(curve.rule, [(point.k, point.rate) for point in curve.points])
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from engine.errors import ConfigError, DatasetError, MissingScoreError
from engine.verifiers.selection.candidates import Candidate, by_task, require_scores
from engine.verifiers.selection.rules import RULES, Rule, adapted


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
    allow_short: bool = False,
) -> list[Curve]:
    """Compute the Best@K curves of rules over the same rollouts.

    Args:
        candidates: graded rollouts of any number of tasks.
        rules: None is every rule for which the table has scores.
        ks: None is 1 … the smallest number of rollouts of any task.
        allow_short: whether a task with fewer than K rollouts counts with all of its rollouts.

    Raises:
        ConfigError: a K is below 1, or above the rollouts of a task without ``allow_short``.
        DatasetError: there are no rollouts, or one occurs twice.
        MissingScoreError: a rollout is not graded, or lacks a score that a rule needs.
    """
    candidates = list(candidates)
    tasks = by_task(candidates)
    if not tasks:
        raise DatasetError("there are no rollouts; a curve needs at least one graded rollout")
    fewest = min(map(len, tasks.values()))
    ks = sorted(set(ks)) if ks is not None else range(1, fewest + 1)
    _check_ks(tasks, ks, allow_short)
    if rules is None:
        rules = available_rules(candidates)
    rules = adapted(rules, candidates)
    for rule in rules:
        require_scores(candidates, rule.needs, rule.name)
    return [_curve(rule, tasks, ks) for rule in rules]


def possible_curves(
    candidates: Iterable[Candidate],
    rules: Sequence[Rule],
    ks: Sequence[int] | None = None,
    *,
    allow_short: bool = False,
) -> tuple[list[Curve], list[str]]:
    """Compute the curves of the rules that have all their scores; arguments as for ``curves``.

    Returns:
        The curves, and the reason of each rule that lacks a score.

    Raises:
        ConfigError, DatasetError: as ``curves`` does.
    """
    candidates = list(candidates)
    found: list[Curve] = []
    missing: list[str] = []
    for rule in rules:
        try:
            found += curves(candidates, [rule], ks, allow_short=allow_short)
        except MissingScoreError as error:
            missing.append(str(error))
    return found, missing


def available_rules(candidates: Sequence[Candidate]) -> list[Rule]:
    """Return the rules of which every score occurs in the table, if only for some of its rollouts."""
    known = {field for rule in RULES.values() for field in rule.needs if _occurs(candidates, field)}
    return [rule for rule in adapted(RULES.values(), candidates) if known.issuperset(rule.needs)]


def _occurs(candidates: Sequence[Candidate], field: str) -> bool:
    return any(getattr(one, field) is not None for one in candidates)


def _check_ks(tasks: dict[str, list[Candidate]], ks: Sequence[int], allow_short: bool) -> None:
    if not ks or ks[0] < 1:
        raise ConfigError(f"K = {list(ks)}; give at least one K, each of at least 1")
    short = [task for task, members in tasks.items() if len(members) < ks[-1]]
    if short and not allow_short:
        raise ConfigError(
            f"K = {ks[-1]} is more than the rollouts of {len(short)} of {len(tasks)} tasks, such as "
            f"{short[0]} with {len(tasks[short[0]])}; lower K, leave these tasks out, or count all they have"
        )


def _curve(rule: Rule, tasks: dict[str, list[Candidate]], ks: Sequence[int]) -> Curve:
    rates = []
    for members in tasks.values():
        own = dict.fromkeys(min(k, len(members)) for k in ks)
        exact = dict(zip(own, rule.expected(members, list(own)), strict=True))
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
