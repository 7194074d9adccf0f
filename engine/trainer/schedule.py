"""Learning rate schedule over a run's iterations. To add one: a name in ``TrainerConfig``, a branch here."""

from __future__ import annotations

import math

from engine.config.learning.trainer import TrainerConfig


def learning_rate(config: TrainerConfig, update: int) -> float:
    """Return the learning rate of update ``update`` (from 0), one update per iteration."""
    warmup = config.warmup_iterations
    if update < warmup:
        return config.learning_rate * (update + 1) / warmup
    done = min(1.0, (update - warmup) / max(1, config.iterations - warmup))
    if config.schedule == "linear":
        return config.learning_rate * (1 - done)
    if config.schedule == "cosine":
        return config.learning_rate * (1 + math.cos(math.pi * done)) / 2
    return config.learning_rate
