"""Metrics of a batch's policy lag and of its rollouts' waiting times."""

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
        group_size: rollouts started per group.
    """
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    lags = [version - t.tokens.versions[t.tokens.mask] for t in trajectories if t.tokens.num_sampled]
    cancelled = group_size * len(groups) - len(trajectories)
    metrics = {"staleness/cancelled": cancelled / max(1, group_size * len(groups))}
    if trajectories:
        timings = [t.timings for t in trajectories]
        metrics["time/sandbox_wait"] = fmean(t.queue + t.pull + t.start for t in timings)
        metrics["time/grading_wait"] = fmean(
            max(0.0, t.timings.grading - (t.grade.seconds if t.grade else 0.0)) for t in trajectories
        )
    if lags:
        tokens = np.concatenate(lags)
        metrics |= {
            "staleness/mean": float(tokens.mean()),
            "staleness/max": float(tokens.max()),
            "staleness/off_policy_share": float((tokens > 0).mean()),
            "staleness/mixed_share": fmean(bool(lag.min() < lag.max()) for lag in lags),
        }
    return metrics
