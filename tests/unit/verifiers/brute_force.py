"""Best@K from its definition: every subset of K, the mean over what a rule cannot tell apart."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence

from engine.verifiers.selection.candidates import Candidate
from engine.verifiers.selection.rules import Rule


def best_at_k(rule: Rule, candidates: Sequence[Candidate], k: int) -> float:
    return statistics.fmean(
        statistics.fmean(one.resolved is True for one in rule.best(subset))
        for subset in itertools.combinations(candidates, k)
    )
