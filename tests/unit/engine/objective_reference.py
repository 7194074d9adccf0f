"""An independent statement of the whole objective in plain Python floats, written from the papers.

It shares no code and no structure with the product: it loops, uses ``max`` and ``sum``, and knows the
gradient in closed form.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple


class Row(NamedTuple):
    """One trajectory: ``state`` is kept, filtered or lost; one (logp, old logp) pair per sampled token."""

    group: int
    reward: float
    state: str
    new: tuple[float, ...]
    old: tuple[float, ...]


def reference_advantages(rows: Sequence[Row], settings: dict[str, Any]) -> list[float | None]:
    answer: list[float | None] = []
    for me, row in enumerate(rows):
        pool = []
        for other, candidate in enumerate(rows):
            if candidate.group != row.group or candidate.state == "lost":
                continue
            if candidate.state == "filtered" and settings["filtered_baseline"] == "drop":
                continue
            zeroed = candidate.state == "filtered" and settings["filtered_baseline"] == "keep_zero"
            pool.append((other, 0.0 if zeroed else candidate.reward))
        mine = [value for other, value in pool if other == me]
        if not mine:
            answer.append(None)
            continue
        values = [value for _, value in pool]
        if settings["baseline"] == "leave_one_out":
            others = [value for other, value in pool if other != me]
            advantage = mine[0] - sum(others) / len(others) if others else 0.0
        elif settings["baseline"] == "group_mean":
            advantage = mine[0] - sum(values) / len(values)
        else:
            advantage = mine[0]
        if settings["std_normalisation"] == "group" and max(values) != min(values):
            mean = sum(values) / len(values)
            variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
            advantage /= math.sqrt(variance) + 1e-6
        answer.append(advantage)
    return answer


def reference_loss(
    rows: Sequence[Row], settings: dict[str, Any], max_context: int
) -> tuple[float, list[list[float]]]:
    """The loss and its derivative by each token's log-probability."""
    counted = [
        r for r in rows if r.state == "kept" or (r.state == "filtered" and settings["denominator"] == "all")
    ]
    low, high = 1 - settings["clip_low"], 1 + settings["clip_high"]
    loss, gradient = 0.0, []
    for row, advantage in zip(rows, reference_advantages(rows, settings), strict=True):
        slopes = [0.0] * len(row.new)
        gradient.append(slopes)
        if row.state != "kept" or not row.new:
            continue
        assert advantage is not None
        if settings["aggregation"] == "constant_length":
            divisor = (settings["normalisation_length"] or max_context) * len(counted)
        elif settings["aggregation"] == "token_mean":
            divisor = sum(len(r.new) for r in counted)
        else:
            divisor = len(counted) * len(row.new)
        for t, (new, old) in enumerate(zip(row.new, row.old, strict=True)):
            ratio = math.exp(new - old)
            unclipped, clipped = -ratio * advantage, -min(max(ratio, low), high) * advantage
            loss += max(unclipped, clipped) / divisor
            if unclipped >= clipped:
                slopes[t] = -ratio * advantage / divisor
    return loss, gradient
