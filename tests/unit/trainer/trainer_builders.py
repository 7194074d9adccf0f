"""Trainers of small policies."""

from __future__ import annotations

import subprocess
from typing import Any

from engine.config.algorithm import AlgorithmConfig
from engine.config.trainer import TrainerConfig
from engine.models.builtin.transformer import Transformer
from engine.trainer.learner import Learner
from engine.trainer.processes.group import TrainerGroup
from engine.trainer.processes.launchers import LocalRanks
from engine.trainer.trainer import Trainer

REWARDS = [[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0], [1.0, 1.0, 1.0, 1.0]]


def processes_of(group: Learner) -> list[subprocess.Popen[bytes]]:
    assert isinstance(group, TrainerGroup)
    assert isinstance(group._launcher, LocalRanks)
    return group._launcher.processes


def make_trainer(
    model: Transformer,
    objective: dict[str, Any] | None = None,
    *,
    reference: Transformer | None = None,
    **settings: Any,
) -> Trainer:
    return Trainer(
        model,
        algorithm=AlgorithmConfig(**(objective or {})),
        config=TrainerConfig(**{"minibatches": 1, "learning_rate": 1e-2, "threads": 1, **settings}),
        max_context=64,
        seed=5,
        reference=reference,
    )
