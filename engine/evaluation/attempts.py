"""Attempts of an evaluation, from which all statistics of this package are computed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from engine.types import INFRASTRUCTURE_REASONS, TerminationReason, Verdict, is_cut_short


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One rollout of an evaluation."""

    task_id: str
    index: int = 0
    """Number of the attempt among those of its task; attempts with the same number form one run."""
    solved: bool | None
    """None when infrastructure lost the rollout or its grading."""
    termination: TerminationReason = TerminationReason.SUBMITTED
    steps: int = 0
    generated_tokens: int = 0
    context_tokens: int = 0
    """Tokens of the longest context: prompt and response of the last step."""
    seconds: float = 0.0
    cost: float | None = None
    """US dollars; None where no price is known."""

    @property
    def submitted(self) -> bool:
        """Return whether the agent submitted, instead of being ended by a limit."""
        return self.termination is TerminationReason.SUBMITTED

    @property
    def is_cut_short(self) -> bool:
        """Return whether a time limit ended the attempt unsolved."""
        return is_cut_short(self.termination, solved=self.solved)


def is_solved(termination: TerminationReason, reward: float | None, verdict: Verdict | None) -> bool | None:
    """Return whether a rollout was solved; None where infrastructure lost it or the outcome is unknown."""
    if reward is None or verdict is None or termination in INFRASTRUCTURE_REASONS:
        return None
    return verdict is Verdict.PASSED


def graded_by_task(attempts: Iterable[Attempt]) -> dict[str, list[Attempt]]:
    """Return the graded attempts of each task, those lost to infrastructure left out."""
    tasks: dict[str, list[Attempt]] = {}
    for attempt in attempts:
        if attempt.solved is not None:
            tasks.setdefault(attempt.task_id, []).append(attempt)
    return tasks


def solve_share(attempts: Iterable[Attempt]) -> float:
    """Return the share of solved attempts; there must be at least one."""
    outcomes = [attempt.solved is True for attempt in attempts]
    return sum(outcomes) / len(outcomes)
