"""Endings of attempts: submitted, ended by a limit, or lost to infrastructure; context for a solve rate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from engine.evaluation.attempts import Attempt
from engine.types import INFRASTRUCTURE_REASONS, LIMITS, TIME_LIMITS, TerminationReason

_PREFIX = "termination/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endings:
    """Finished attempts by their ending."""

    submitted: int
    limits: Mapping[TerminationReason, int]
    """Graded attempts that each limit ended, the most frequent limit first."""
    excluded: int
    """Attempts lost to infrastructure, which rates leave out."""

    @classmethod
    def of(cls, graded: Mapping[str, int], *, excluded: int) -> Self:
        """Return the endings from the numbers of graded attempts by termination reason."""
        limits = [(reason, graded[reason]) for reason in LIMITS if graded.get(reason)]
        return cls(
            submitted=graded.get(TerminationReason.SUBMITTED, 0),
            limits=dict(sorted(limits, key=lambda pair: -pair[1])),
            excluded=excluded,
        )

    @classmethod
    def of_attempts(cls, attempts: Iterable[Attempt]) -> Self:
        """Count attempts by their ending."""
        counts: dict[str, int] = {}
        excluded = 0
        for attempt in attempts:
            excluded += attempt.solved is None
            if attempt.solved is not None:
                counts[attempt.termination] = counts.get(attempt.termination, 0) + 1
        return cls.of(counts, excluded=excluded)

    @classmethod
    def of_metrics(cls, metrics: Mapping[str, float], *, graded: int) -> Self | None:
        """Return the endings computed from ``termination/*`` and ``infra/rate``; None without these metrics.

        Args:
            metrics: of an iteration or an evaluation.
            graded: its number of graded attempts.
        """
        lost = metrics.get(
            "infra/rate", sum(metrics.get(f"{_PREFIX}{r}", 0.0) for r in INFRASTRUCTURE_REASONS)
        )
        if f"{_PREFIX}{TerminationReason.SUBMITTED}" not in metrics or not graded or lost >= 1:
            return None
        total = round(graded / (1 - lost))
        counts: dict[str, int] = {
            reason: round(total * metrics.get(f"{_PREFIX}{reason}", 0.0)) for reason in LIMITS
        }
        counts[TerminationReason.SUBMITTED] = max(0, graded - sum(counts.values()))
        return cls.of(counts, excluded=total - graded)

    @property
    def counts(self) -> dict[str, int]:
        """Return the numbers of graded attempts by termination reason."""
        return {TerminationReason.SUBMITTED.value: self.submitted} | {
            reason.value: count for reason, count in self.limits.items()
        }

    @property
    def graded(self) -> int:
        """Return the number of graded attempts."""
        return self.submitted + sum(self.limits.values())

    @property
    def limited(self) -> int:
        """Return the number of attempts that a limit ended."""
        return self.graded - self.submitted

    @property
    def timed(self) -> int:
        """Return the number of attempts that a time limit ended; on a faster machine they may succeed."""
        return sum(count for reason, count in self.limits.items() if reason in TIME_LIMITS)
