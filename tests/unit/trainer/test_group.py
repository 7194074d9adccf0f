"""A trainer in child processes: same updates, sharded checkpoints, and failures that do not hang."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config.algorithm import AlgorithmConfig
from engine.config.trainer import TrainerConfig
from engine.errors import CheckpointError, TrainerError
from engine.models.builtin.transformer import Transformer
from engine.models.opening import open_model
from engine.trainer.checkpoints.checkpoint import load_latest, restore_training, take_snapshot, write_snapshot
from engine.trainer.group import TrainerGroup
from engine.trainer.trainer import Trainer
from engine.types import Group
from tests.unit.engine.rl_model import make_groups, make_model
from tests.unit.engine.rl_training_script import TOKENIZER_SIZE, make_tokenizer

torch.set_num_threads(1)
REWARDS = [[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0]]


def settings(**trainer: Any) -> dict[str, Any]:
    return {
        "algorithm": AlgorithmConfig(),
        "config": TrainerConfig(**{"minibatches": 2, "learning_rate": 1e-3, "threads": 1} | trainer),
        "max_context": 64,
        "seed": 5,
    }


@contextmanager
def group(model: Transformer, ranks: int = 2) -> Iterator[TrainerGroup]:
    found = TrainerGroup(model, **settings(data_parallel=ranks))
    try:
        yield found
    finally:
        found.close()


def episodes() -> list[Group]:
    return make_groups(make_model(seed=1), REWARDS)


def distance(a: Transformer, b: Transformer) -> float:
    flat = [torch.cat([p.detach().flatten() for p in model.parameters()]) for model in (a, b)]
    return float((flat[0] - flat[1]).norm() / flat[1].norm())


def test_updates_checkpoints_and_another_number_of_ranks(tmp_path: Path) -> None:
    alone, shared = make_model(vocab=TOKENIZER_SIZE), make_model(vocab=TOKENIZER_SIZE)
    trainer = Trainer(alone, **settings())
    with group(shared) as ranks:
        for _ in range(2):
            expected = trainer.update(episodes(), temperature=1.0)
            found = ranks.update(episodes(), temperature=1.0)
            assert found.members == expected.members
            assert found.optimizer_steps == expected.optimizer_steps == 2
            assert distance(shared, alone) <= 1e-6
        snapshot = take_snapshot(
            tmp_path, 2, model=shared, tokenizer=make_tokenizer(), trainer=ranks, cursor={}, provenance={}
        )
        write_snapshot(snapshot)
    checkpoint = load_latest(tmp_path)
    assert checkpoint is not None
    assert (checkpoint.path / "shards" / ".metadata").exists()
    trainer.update(episodes(), temperature=1.0)
    again, _ = open_model(str(checkpoint.path), home=tmp_path).builtin()
    resumed = Trainer(again, **settings())
    restore_training(checkpoint, resumed)
    resumed.update(episodes(), temperature=1.0)
    assert distance(again, alone) <= 1e-6
    third, _ = open_model(str(checkpoint.path), home=tmp_path).builtin()
    with group(third, ranks=3) as others:
        restore_training(checkpoint, others)
        others.update(episodes(), temperature=1.0)
        assert distance(third, alone) <= 1e-6
        with pytest.raises(CheckpointError, match="data_parallel and context_parallel to 1"):
            others.load_state_dict(Trainer(make_model(), **settings()).state_dict())


def test_a_rank_that_fails_or_dies_ends_the_group() -> None:
    model = make_model()
    with group(model) as ranks, pytest.raises(TrainerError, match=r"rank \d of the trainer failed"):
        ranks.update(episodes(), temperature="hot")  # type: ignore[arg-type]
    with group(model) as ranks:
        victim = ranks._processes[1].pid
        assert victim is not None
        os.kill(victim, signal.SIGKILL)
        ranks._processes[1].join()  # its end of the pipe is closed by now: the question itself fails
        with pytest.raises(TrainerError, match="trainer (ended|failed)"):
            ranks.update(episodes(), temperature=1.0)
        assert not any(process.is_alive() for process in ranks._processes)
