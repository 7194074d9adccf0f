"""Breakdown of an evaluation: by part such as repository, by submission, by budget, and cost per solution."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from engine.evaluation.attempts import Attempt, graded_by_task, solve_share
from engine.evaluation.metrics import solve_interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Solve rate of a part of the tasks."""

    name: str
    num_tasks: int
    num_attempts: int
    num_solved: int
    num_cut_short: int
    """Attempts that a time limit ended unsolved."""
    rate: float
    """Mean over tasks of their solve rates."""
    interval_low: float | None
    interval_high: float | None
    """95 % interval of ``rate``; None for a single task, which has no spread."""


def parts(attempts: Iterable[Attempt], names: Mapping[str, str]) -> list[Part]:
    """Return the solve rate of each part, the largest first; ``names`` maps every task to its part.

    Callers define the parts, such as repositories or difficulties. Parts without graded attempts are omitted.
    """
    members: dict[str, list[list[Attempt]]] = {}
    for task, tried in graded_by_task(attempts).items():
        members.setdefault(names[task], []).append(tried)
    result = [_part(name, tasks) for name, tasks in members.items()]
    return sorted(result, key=lambda part: (-part.num_tasks, part.name))


def _part(name: str, tasks: Sequence[Sequence[Attempt]]) -> Part:
    rates = [solve_share(tried) for tried in tasks]
    num_attempts = sum(map(len, tasks))
    low, high = solve_interval(rates, num_attempts) if len(rates) > 1 else (None, None)
    return Part(
        name=name,
        num_tasks=len(tasks),
        num_attempts=num_attempts,
        num_solved=sum(attempt.solved is True for tried in tasks for attempt in tried),
        num_cut_short=sum(attempt.is_cut_short for tried in tasks for attempt in tried),
        rate=fmean(rates),
        interval_low=low,
        interval_high=high,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Submissions:
    """Graded attempts by outcome and by whether the agent submitted or a limit ended it."""

    submitted_solved: int
    submitted_unsolved: int
    ended_solved: int
    """A limit ended the agent, but its patch passed."""
    ended_unsolved: int
    rate: float | None
    """pass@1 of all graded attempts; None without any."""
    deliberate_rate: float | None
    """pass@1 if only deliberate submissions count; None without a graded attempt."""


def submissions(attempts: Iterable[Attempt]) -> Submissions:
    """Count outcomes with and without a deliberate submission."""
    tasks = list(graded_by_task(attempts).values())
    graded = [attempt for tried in tasks for attempt in tried]

    def count(submitted: bool, solved: bool) -> int:
        return sum(attempt.submitted is submitted and attempt.solved is solved for attempt in graded)

    return Submissions(
        submitted_solved=count(True, True),
        submitted_unsolved=count(True, False),
        ended_solved=count(False, True),
        ended_unsolved=count(False, False),
        rate=_mean_share(tasks, lambda attempt: attempt.solved is True),
        deliberate_rate=_mean_share(tasks, lambda attempt: attempt.solved is True and attempt.submitted),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetPoint:
    """Outcome of stored attempts if each had been ended at a budget."""

    budget: int
    rate: float | None
    """Mean over tasks of the share of attempts that were solved and had ended within the budget; None without
    a graded attempt."""
    ended: float | None
    """Mean over tasks of the share of attempts that had ended within the budget."""


def budget_curve(
    attempts: Iterable[Attempt], size: Callable[[Attempt], int], budgets: Iterable[int]
) -> list[BudgetPoint]:
    """Return the solve rate within each budget, from attempts made with a larger one.

    An approximation: a real rerun would also grade the unfinished patch at the end of the budget. So this is
    a lower bound for agents that do not know their budget; those that know it may hurry.

    Args:
        attempts: all attempts; those lost to infrastructure are left out.
        size: what the budget limits, such as ``attrgetter("steps")``.
        budgets: in any order.
    """
    tasks = graded_by_task(attempts).values()
    ended = [sorted(map(size, tried)) for tried in tasks]
    solved = [sorted(size(attempt) for attempt in tried if attempt.solved) for tried in tasks]
    numbers = [len(tried) for tried in tasks]

    def share(sizes: Sequence[Sequence[int]], budget: int) -> float | None:
        within = (bisect_right(values, budget) / n for values, n in zip(sizes, numbers, strict=True))
        return fmean(within) if numbers else None

    return [
        BudgetPoint(budget=budget, rate=share(solved, budget), ended=share(ended, budget))
        for budget in sorted(set(budgets))
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """Cost and time of an evaluation's attempts, lost ones included.

    Lost attempts that were repeated are not included; their cost is in the run's summary only.
    """

    num_solved: int
    """Solved attempts."""
    seconds: float
    """Wall time of all attempts, added up."""
    seconds_per_solved: float | None
    """None where nothing was solved."""
    cost: float | None
    """US dollars of the attempts with a known price, so a lower bound where some have none."""
    cost_per_solved: float | None
    """``cost`` divided by the solved attempts; None where nothing was solved."""
    num_unpriced: int
    """Attempts without a known price."""


def spending(attempts: Iterable[Attempt]) -> Spending:
    """Add up cost and time, and divide them by the solved attempts."""
    attempts = list(attempts)
    solved = sum(attempt.solved is True for attempt in attempts)
    priced = [attempt.cost for attempt in attempts if attempt.cost is not None]
    seconds = sum(attempt.seconds for attempt in attempts)
    cost = sum(priced) if priced else None
    return Spending(
        num_solved=solved,
        seconds=seconds,
        seconds_per_solved=seconds / solved if solved else None,
        cost=cost,
        cost_per_solved=cost / solved if solved and cost is not None else None,
        num_unpriced=len(attempts) - len(priced),
    )


def _mean_share(tasks: Sequence[Sequence[Attempt]], holds: Callable[[Attempt], bool]) -> float | None:
    """Return the mean over tasks of the share of attempts for which ``holds`` is true; None without tasks."""
    return fmean(sum(map(holds, tried)) / len(tried) for tried in tasks) if tasks else None
