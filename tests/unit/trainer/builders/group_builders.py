"""Builders of trainer groups, their policy, and the equivalent single-process trainer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from engine.config.learning.algorithm import AlgorithmConfig
from engine.config.learning.trainer import TrainerConfig
from engine.models.builtin.transformer import Transformer
from engine.models.loader import save_policy_checkpoint
from engine.ray.placement import ignore
from engine.trainer.processes.group import TrainerGroup
from engine.trainer.processes.rank import RankSettings
from engine.trainer.processes.start import open_launcher
from engine.trainer.trainer import Trainer
from engine.types import Group
from tests.unit.trainer.builders.rl_model import make_groups, make_model
from tests.unit.trainer.builders.rl_training_script import TOKENIZER_SIZE, make_tokenizer


def trainer_config(**settings: Any) -> TrainerConfig:
    return TrainerConfig(**{"minibatches": 2, "learning_rate": 1e-3, "threads": 1} | settings)


def whole_model() -> Transformer:
    return make_model(vocab=TOKENIZER_SIZE)


def write_policy(folder: Path) -> Path:
    save_policy_checkpoint(folder, whole_model(), make_tokenizer(), {})
    return folder


def alone(model: Transformer, **settings: Any) -> Trainer:
    config = trainer_config(**settings)
    return Trainer(model, algorithm=AlgorithmConfig(), config=config, max_context=64, seed=5)


@contextmanager
def group(policy: Path, sampler: Transformer | None, ranks: int = 2, **more: Any) -> Iterator[TrainerGroup]:
    settings = RankSettings(
        policy=str(policy),
        reference=None,
        home=policy,
        algorithm=AlgorithmConfig(),
        config=trainer_config(**{"data_parallel": ranks} | more),
        max_context=64,
        seed=5,
        device="cpu",
    )
    launcher = open_launcher(settings.config, device="cpu", notice=ignore)
    trainers = TrainerGroup(settings, launcher, sampler=sampler)
    try:
        yield trainers
    finally:
        trainers.close()


def episodes() -> list[Group]:
    return make_groups(make_model(seed=1), [[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0]])


def distance(a: Transformer, b: Transformer) -> float:
    flat = [torch.cat([p.detach().flatten() for p in model.parameters()]) for model in (a, b)]
    return float((flat[0] - flat[1]).norm() / flat[1].norm())
