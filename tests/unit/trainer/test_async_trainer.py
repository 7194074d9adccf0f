"""Training in a thread: a responsive event loop, early end of cancelled updates, typed errors."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config.run import TrainRun
from engine.errors import CheckpointError, TrainerError, UpdateAbandonedError
from engine.models.loader import save_policy_checkpoint
from engine.trainer.async_trainer import AsyncTrainer
from engine.trainer.checkpoints.checkpoint import write_snapshot
from engine.trainer.factory import TrainingSetup
from engine.trainer.trainer import Trainer
from tests.unit.trainer.builders.rl_model import make_groups, make_model
from tests.unit.trainer.builders.rl_training_script import TOKENIZER_SIZE, make_tokenizer
from tests.unit.trainer.builders.trainer_builders import make_run

REWARDS = [[1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 0.25, 1.0]]
GROUPS = make_groups(make_model(vocab=TOKENIZER_SIZE), REWARDS)
CURSOR: dict[str, Any] = {"cursor": {}, "provenance": {}}


@pytest.fixture
def config(tmp_path: Path) -> TrainRun:
    save_policy_checkpoint(tmp_path / "policy", make_model(vocab=TOKENIZER_SIZE), make_tokenizer(), {})
    return make_run(tmp_path / "policy", max_context=1024)


async def opened(config: TrainRun, folder: Path, **settings: Any) -> AsyncTrainer:
    config = config.model_copy(update={"trainer": config.trainer.model_copy(update=settings)})
    return await AsyncTrainer.open(TrainingSetup.of(config), run_dir=folder, home=folder, checkpoint=None)


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("training")}


def weights(trainer: AsyncTrainer) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in trainer.model.parameters()]


async def test_async_trainer_matches_a_plain_trainer_and_seeds_the_random_state(
    config: TrainRun, tmp_path: Path
) -> None:
    trainer = await opened(config, tmp_path)
    random_value = float(torch.rand(()))
    torch.manual_seed(config.seed)
    assert random_value == float(torch.rand(()))
    alone = Trainer(
        make_model(vocab=TOKENIZER_SIZE),
        algorithm=config.algorithm,
        config=config.trainer,
        max_context=config.agent.max_context,
        seed=config.seed,
    )
    expected = alone.update(GROUPS, temperature=1.0)
    result = await trainer.update(GROUPS, temperature=1.0)
    assert result.members == expected.members
    assert result.optimizer_steps == expected.optimizer_steps == 1
    for (name, ours), theirs in zip(alone.weights(), weights(trainer), strict=True):
        assert torch.equal(ours, theirs), name
    snapshot = await trainer.snapshot(tmp_path, 1, **CURSOR)
    checkpoint = write_snapshot(snapshot)
    assert threads()
    await trainer.close()
    assert not threads()
    resumed = await AsyncTrainer.open(
        TrainingSetup.of(config), run_dir=tmp_path, home=tmp_path, checkpoint=checkpoint
    )
    await resumed.update(GROUPS, temperature=1.0)
    alone.update(GROUPS, temperature=1.0)
    for (name, ours), theirs in zip(alone.weights(), weights(resumed), strict=True):
        assert torch.equal(ours, theirs), name
    await resumed.close()


class Gate:
    """Gate that blocks an update in its first microbatch until opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered, self.opened, self.microbatches = threading.Event(), threading.Event(), 0
        accumulate = Trainer._accumulate

        def gated(trainer: Trainer, *arguments: Any) -> float:
            self.microbatches += 1
            self.entered.set()
            assert self.opened.wait(240)
            return accumulate(trainer, *arguments)

        monkeypatch.setattr(Trainer, "_accumulate", gated)


async def test_event_loop_keeps_running_during_an_update(
    config: TrainRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, gate = await opened(config, tmp_path), Gate(monkeypatch)
    update = asyncio.create_task(trainer.update(GROUPS, temperature=1.0))
    while not gate.entered.is_set():  # advances only if the loop is not blocked
        await asyncio.sleep(0.001)
    assert not update.done()
    gate.opened.set()
    assert (await update).optimizer_steps == 1
    await trainer.close()


async def test_a_cancelled_update_ends_after_its_microbatch_without_changing_weights(
    config: TrainRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, gate = await opened(config, tmp_path), Gate(monkeypatch)
    before = weights(trainer)
    update = asyncio.create_task(trainer.update(GROUPS, temperature=1.0))
    while not gate.entered.is_set():
        await asyncio.sleep(0.001)
    update.cancel()
    await asyncio.sleep(0.01)
    assert not update.done(), "the thread is still at work on the model"
    gate.opened.set()
    with pytest.raises(asyncio.CancelledError):
        await update
    assert gate.microbatches == 1
    assert all(torch.equal(a, b) for a, b in zip(before, weights(trainer), strict=True))
    with pytest.raises(UpdateAbandonedError):
        await trainer.snapshot(tmp_path, 1, **CURSOR)
    with pytest.raises(UpdateAbandonedError):
        await trainer.update(GROUPS, temperature=1.0)
    await trainer.close()
    assert not threads()


async def test_failures_in_the_training_thread_raise_typed_errors_and_leave_no_thread(
    config: TrainRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = await opened(config, tmp_path)

    def out_of_memory(*_arguments: Any) -> float:
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr(Trainer, "_accumulate", out_of_memory)
    with pytest.raises(TrainerError, match="RuntimeError: CUDA out of memory"):
        await trainer.update(GROUPS, temperature=1.0)
    await trainer.close()
    missing = config.policy.model_copy(update={"checkpoint": str(tmp_path / "nowhere")})
    with pytest.raises(CheckpointError):
        await opened(config.model_copy(update={"policy": missing}), tmp_path)
    assert not threads()
