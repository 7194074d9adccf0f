"""Trainers of small policies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil

from engine.config.learning.algorithm import AlgorithmConfig
from engine.config.learning.trainer import TrainerConfig
from engine.config.run import TrainRun, parse_run_config
from engine.models.builtin.transformer import Transformer
from engine.processes.guarded import GuardedProcess, Process
from engine.trainer.learner import Learner
from engine.trainer.processes.group import TrainerGroup
from engine.trainer.trainer import Trainer

REWARDS = [[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0], [1.0, 1.0, 1.0, 1.0]]


def processes_of(group: Learner) -> list[Process]:
    assert isinstance(group, TrainerGroup)
    return group._ranks.processes


def pids_of(group: Learner) -> list[int]:
    """Return the process ids of the ranks, without their guards."""
    guards = [process.pid for process in processes_of(group) if isinstance(process, GuardedProcess)]
    return [rank.pid for guard in guards for rank in psutil.Process(guard).children()]


def make_run(
    checkpoint: Path, *, max_context: int = 512, engine: str = "builtin", **trainer: Any
) -> TrainRun:
    """Return the configuration of a run that trains a policy."""
    settings = {"threads": 1, "minibatches": 1, "tokens_per_microbatch": 64, "device": "cpu", **trainer}
    config = parse_run_config(
        {
            "kind": "train",
            "name": "t",
            "dataset": {"name": "d"},
            "agent": {"max_context": max_context, "max_response": max_context // 4},
            "policy": {"checkpoint": str(checkpoint), "engine": engine},
            "trainer": settings,
            "seed": 5,
        }
    )
    assert isinstance(config, TrainRun)
    return config


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
