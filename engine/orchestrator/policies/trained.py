"""Sampler in this process of the policy that a run trains."""

from __future__ import annotations

import copy

from engine.config.run import TrainRun
from engine.inference.builtin.sampler import TransformerPolicy
from engine.models.precision import product_type
from engine.trainer.async_trainer import AsyncTrainer


def open_trained_policy(config: TrainRun, trainer: AsyncTrainer) -> TransformerPolicy:
    """Return the sampler of the trainer's weights, or of a copy where it samples during updates."""
    is_copied = config.schedule.mode != "sync"
    return TransformerPolicy(
        copy.deepcopy(trainer.model) if is_copied else trainer.model,
        trainer.chat,
        max_batch=config.policy.max_batch,
        low=product_type(config.trainer.precision),
        trained=trainer.model if is_copied else None,
    )
