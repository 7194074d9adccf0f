"""Selection of training trajectories: distinct patches, preference, caps per task and in total."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from engine.config.learning.fine_tuning import SelectionRule


class Candidate(Protocol):
    """A trajectory that may be selected."""

    @property
    def id(self) -> object:
        """Return the trajectory's identity, whose text seeds the random order."""

    @property
    def task_key(self) -> str:
        """Return the key of its task."""

    @property
    def patch_hash(self) -> str:
        """Return the hash of its patch; empty without a patch."""

    @property
    def generated_tokens(self) -> int:
        """Return its number of generated tokens; 0 where it is unknown."""

    @property
    def num_steps(self) -> int:
        """Return its number of steps."""


T = TypeVar("T", bound=Candidate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected(Generic[T]):
    """Selected trajectories, preferred ones first, and counts of those left out."""

    chosen: tuple[T, ...]
    duplicates: int
    """Left out because another trajectory of the task has the same patch."""
    over_cap: int
    """Left out because of the cap per task."""
    over_limit: int
    """Left out because of the total limit."""


def select(candidates: Iterable[T], rule: SelectionRule, *, seed: int) -> Selected[T]:
    """Apply a rule; the same candidates and seed give the same selection.

    A limit takes one trajectory of every task, then a second one, and so on.
    """
    ordered = sorted(candidates, key=lambda candidate: _preference(candidate, rule, seed))
    distinct = _distinct(ordered) if rule.distinct_patches else ordered
    capped: list[tuple[int, T]] = []
    counts: Counter[str] = Counter()
    for candidate in distinct:
        if rule.per_task is None or counts[candidate.task_key] < rule.per_task:
            capped.append((counts[candidate.task_key], candidate))
        counts[candidate.task_key] += 1
    round_robin = [candidate for _, candidate in sorted(capped, key=lambda ranked: ranked[0])]
    chosen = round_robin[: rule.limit]
    return Selected(
        chosen=tuple(chosen),
        duplicates=len(ordered) - len(distinct),
        over_cap=len(distinct) - len(capped),
        over_limit=len(capped) - len(chosen),
    )


def _preference(one: Candidate, rule: SelectionRule, seed: int) -> tuple[bool, int, bytes]:
    drawn = hashlib.sha256(f"{seed}/{one.id}".encode()).digest()
    if rule.prefer == "random":
        return False, 0, drawn
    is_unknown = one.generated_tokens == 0
    return is_unknown, one.num_steps if is_unknown else one.generated_tokens, drawn


def _distinct(candidates: Sequence[T]) -> list[T]:
    """Return the first candidate of each task and patch; candidates without a patch all count as distinct."""
    seen: set[tuple[str, str]] = set()
    kept = []
    for candidate in candidates:
        key = (candidate.task_key, candidate.patch_hash)
        if not candidate.patch_hash or key not in seen:
            kept.append(candidate)
        seen.add(key)
    return kept
