"""Metrics of how far a batch lags behind the weights that it trains, and of what its rollouts waited for."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import numpy as np

from engine.types import Group


def staleness_metrics(groups: Sequence[Group], *, version: int, group_size: int) -> dict[str, float]:
    """Return the staleness of a batch, in policy versions, and the waits of its rollouts.

    Args:
        groups: of the batch.
        version: of the weights before the update.
        group_size: rollouts that each group began with.
    """
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    lags = [version - one.tokens.versions[one.tokens.mask] for one in trajectories if one.tokens.num_sampled]
    cancelled = group_size * len(groups) - len(trajectories)
    found = {"staleness/cancelled": cancelled / max(1, group_size * len(groups))}
    if trajectories:
        timings = [one.timings for one in trajectories]
        found["time/sandbox_wait"] = fmean(one.queue + one.pull + one.start for one in timings)
        found["time/grading_wait"] = fmean(
            max(0.0, one.timings.grading - (one.grade.seconds if one.grade else 0.0)) for one in trajectories
        )
    if lags:
        tokens = np.concatenate(lags)
        found |= {
            "staleness/mean": float(tokens.mean()),
            "staleness/max": float(tokens.max()),
            "staleness/off_policy_share": float((tokens > 0).mean()),
            "staleness/mixed_share": fmean(bool(lag.min() < lag.max()) for lag in lags),
        }
    return found
