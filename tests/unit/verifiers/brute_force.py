"""Best@K by its definition: the mean over all subsets of size K, and over ties within each."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence

from engine.verifiers.selection.candidates import Candidate
from engine.verifiers.selection.rules import Rule


def best_at_k(rule: Rule, candidates: Sequence[Candidate], k: int) -> float:
    return statistics.fmean(
        statistics.fmean(candidate.resolved is True for candidate in rule.best(subset))
        for subset in itertools.combinations(candidates, k)
    )
