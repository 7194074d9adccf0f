"""Rollouts of a task with the scores that selection rules compare."""

from __future__ import annotations

import math
import reprlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from engine.errors import DatasetError, MissingScoreError

MAX_CANDIDATES = 1000
"""Maximum number of rollouts of one task: the numbers of their subsets still fit into a float."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One finished rollout of a task; a score that was not computed is None, never 0.

    Raises:
        DatasetError: a score is not a finite number, or P(YES) is outside 0 … 1.
    """

    task_id: str
    trajectory_id: str
    resolved: bool | None = None
    """Whether the hidden tests passed; curves count it, and only ``oracle`` selects by it."""
    p_yes: float | None = None
    """P(YES) of the execution-free verifier, 0 … 1."""
    regression_passes: float | None = None
    """Regression tests that passed: a count, or a share of the same tests."""
    reproduction_passes: float | None = None
    """Reproduction tests that passed: a count or a mean."""
    steps: int | None = None
    tokens: int | None = None
    """Tokens that the model generated."""
    patch_hash: str | None = None
    """Hash of the submitted patch; empty for an empty patch."""

    def __post_init__(self) -> None:
        for field in ("p_yes", "regression_passes", "reproduction_passes", "steps", "tokens"):
            value = getattr(self, field)
            if value is not None and not _is_finite(value):
                raise DatasetError(
                    f"{self} has {field} = {reprlib.repr(value)}; it must be a finite number, or absent"
                )
        if self.p_yes is not None and not 0 <= self.p_yes <= 1:
            raise DatasetError(f"{self} has p_yes = {self.p_yes}; a probability is between 0 and 1")

    def __str__(self) -> str:
        return f"trajectory {self.trajectory_id} of task {self.task_id}"


def _is_finite(value: float) -> bool:
    """Return whether a number fits into a float and is neither infinite nor NaN."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def by_task(candidates: Iterable[Candidate]) -> dict[str, list[Candidate]]:
    """Return the candidates of each task, tasks in the order of their first candidate.

    Raises:
        DatasetError: a trajectory occurs twice in its task, or a task has over ``MAX_CANDIDATES``.
    """
    tasks: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        tasks.setdefault(candidate.task_id, []).append(candidate)
    for task, members in tasks.items():
        name, times = Counter(member.trajectory_id for member in members).most_common(1)[0]
        if times > 1:
            raise DatasetError(
                f"trajectory {name} of task {task} occurs {times} times; give each rollout once"
            )
        if len(members) > MAX_CANDIDATES:
            raise DatasetError(f"task {task} has {len(members)} rollouts; the most is {MAX_CANDIDATES}")
    return tasks


def require_scores(candidates: Sequence[Candidate], fields: Sequence[str], purpose: str) -> None:
    """Raise MissingScoreError if a candidate lacks one of the fields; ``purpose`` names their use."""
    for field in fields:
        missing = [candidate for candidate in candidates if getattr(candidate, field) is None]
        if missing:
            raise MissingScoreError(field, purpose, str(missing[0]), len(missing), len(candidates))
