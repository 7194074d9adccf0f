"""An independent implementation of the whole objective in plain Python floats, written from the papers.

It shares no code and no structure with the product: it loops over trajectories and tokens, uses ``max`` and
``sum``, and computes the gradient in closed form.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple


class Token(NamedTuple):
    """Log-probabilities of one sampled token under each policy, and the entropy of the trained one."""

    new: float
    old: float
    sampler: float
    reference: float
    entropy: float


class Row(NamedTuple):
    """One trajectory: ``state`` is kept, filtered or lost; ``length`` counts the conversation's tokens."""

    group: int
    reward: float
    state: str
    length: int
    tokens: tuple[Token, ...]


Settings = dict[str, Any]


def kl_term(token: Token, settings: Settings, policy: float) -> float:
    gap = token.reference - policy
    return {"none": 0.0, "k1": -gap, "k2": gap * gap / 2, "k3": math.exp(gap) - 1 - gap}[settings["kl"]]


def shaped_reward(row: Row, settings: Settings, context: int) -> float:
    reward = row.reward
    buffer = settings["overlong_buffer"]
    if buffer:
        cache = buffer * context if buffer < 1 else buffer
        start = context - cache
        if row.length > context:
            reward -= settings["overlong_penalty"]
        elif row.length > start:
            reward -= settings["overlong_penalty"] * (row.length - start) / cache
    if settings["kl_placement"] == "reward":
        reward -= settings["kl_coefficient"] * math.fsum(kl_term(t, settings, t.old) for t in row.tokens)
    return reward


def reference_advantages(rows: Sequence[Row], settings: Settings, context: int) -> list[float | None]:
    values: dict[int, float] = {}
    for index, row in enumerate(rows):
        if row.state == "kept" or (row.state == "filtered" and settings["filtered_baseline"] != "drop"):
            zeroed = row.state == "filtered" and settings["filtered_baseline"] == "keep_zero"
            values[index] = 0.0 if zeroed else shaped_reward(row, settings, context)
    advantages: list[float | None] = []
    for index, row in enumerate(rows):
        if index not in values:
            advantages.append(None)
            continue
        group = {other: value for other, value in values.items() if rows[other].group == row.group}
        others = [value for other, value in group.items() if other != index]
        mine, everyone, siblings = values[index], list(values.values()), list(group.values())
        if settings["baseline"] == "leave_one_out":
            advantage = mine - sum(others) / len(others) if others and _spread(siblings) else 0.0
        elif settings["baseline"] == "group_mean":
            advantage = mine - sum(siblings) / len(siblings) if _spread(siblings) else 0.0
        elif settings["baseline"] == "batch_mean":
            advantage = mine - sum(everyone) / len(everyone) if _spread(everyone) else 0.0
        else:
            advantage = mine
        pool = {"none": [], "group": siblings, "batch": everyone}[settings["std_normalisation"]]
        if _spread(pool):
            mean = sum(pool) / len(pool)
            advantage /= math.sqrt(sum((v - mean) ** 2 for v in pool) / (len(pool) - 1)) + 1e-6
        advantages.append(advantage)
    return advantages


def _spread(values: Sequence[float]) -> bool:
    return len(values) > 1 and max(values) != min(values)


def correction(row: Row, settings: Settings) -> list[float]:
    gaps = [token.old - token.sampler for token in row.tokens]
    low, high = settings["importance_low"], settings["importance_high"]
    kind = settings["importance_correction"]
    if kind == "none":
        return [1.0] * len(gaps)
    if kind == "token_tis":
        return [max(low, min(high, math.exp(gap))) for gap in gaps]
    if kind == "icepop":
        return [math.exp(gap) if low <= math.exp(gap) <= high else 0.0 for gap in gaps]
    mean = math.exp(sum(gaps) / len(gaps))
    return [1.0 if low <= mean <= high else 0.0] * len(gaps)


def reference_loss(
    rows: Sequence[Row], settings: Settings, context: int
) -> tuple[float, list[list[float]], list[list[float]]]:
    """Return the loss and its derivatives by each token's log-probability and entropy."""
    advantages = reference_advantages(rows, settings, context)
    silent = {
        row.group
        for row in rows
        if settings["zero_advantage_groups"] == "drop"
        and not any(
            a for a, r in zip(advantages, rows, strict=True) if r.group == row.group and r.state == "kept"
        )
    }
    counted = [
        r
        for r in rows
        if r.group not in silent
        and (r.state == "kept" or (r.state == "filtered" and settings["denominator"] == "all"))
    ]
    loss, by_logprob, by_entropy = 0.0, [], []
    for row, advantage in zip(rows, advantages, strict=True):
        slopes, entropy_slopes = [0.0] * len(row.tokens), [0.0] * len(row.tokens)
        by_logprob.append(slopes)
        by_entropy.append(entropy_slopes)
        if row.state != "kept" or not row.tokens or row.group in silent:
            continue
        assert advantage is not None
        divisor = {
            "constant_length": (settings["normalisation_length"] or context) * len(counted),
            "token_mean": sum(len(r.tokens) for r in counted),
            "sequence_mean": len(counted) * len(row.tokens),
            "token_sum": 1,
        }[settings["aggregation"]]
        weights = correction(row, settings)
        surrogate, gradient = surrogate_of(row, advantage, weights, settings)
        in_loss = settings["kl_placement"] == "loss"
        for t, token in enumerate(row.tokens):
            loss += surrogate[t] / divisor
            slopes[t] += gradient[t] / divisor
            if in_loss:
                gap = token.reference - token.new
                slope = {"none": 0.0, "k1": 1.0, "k2": -gap, "k3": 1 - math.exp(gap)}[settings["kl"]]
                loss += settings["kl_coefficient"] * kl_term(token, settings, token.new) / divisor
                slopes[t] += settings["kl_coefficient"] * slope / divisor
            loss -= settings["entropy_coefficient"] * token.entropy / divisor
            entropy_slopes[t] -= settings["entropy_coefficient"] / divisor
    return loss, by_logprob, by_entropy


def surrogate_of(
    row: Row, advantage: float, weights: Sequence[float], settings: Settings
) -> tuple[list[float], list[float]]:
    """Return a trajectory's corrected surrogate losses per token and their sum's slopes by each log π."""
    low, high = 1 - settings["clip_low"], 1 + settings["clip_high"]
    gaps = [token.new - token.old for token in row.tokens]
    if settings["ratio"] == "none":
        losses = [-c * advantage * token.new for c, token in zip(weights, row.tokens, strict=True)]
        return losses, [-c * advantage for c in weights]
    if settings["ratio"] == "cispo":
        caps = [max(low, min(high, math.exp(gap))) for gap in gaps]
        slopes = [-c * cap * advantage for c, cap in zip(weights, caps, strict=True)]
        return [slope * token.new for slope, token in zip(slopes, row.tokens, strict=True)], slopes
    if settings["ratio"] == "sequence":
        gaps = [sum(gaps) / len(gaps)] * len(gaps)
    losses, slopes = [], []
    for gap, c in zip(gaps, weights, strict=True):
        ratio = math.exp(gap)
        free, clipped = -ratio * advantage, -max(low, min(high, ratio)) * advantage
        value, slope = max(free, clipped), (free if free >= clipped else 0.0)
        if settings["dual_clip"] and advantage < 0 and value > -settings["dual_clip"] * advantage:
            value, slope = -settings["dual_clip"] * advantage, 0.0
        losses.append(c * value)
        slopes.append(c * slope)
    if settings["ratio"] == "sequence":
        slopes = [sum(slopes) / len(slopes)] * len(slopes)
    return losses, slopes
