"""Two ranks under the asynchronous trainer: imitation, and a cancelled update."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from engine.config.learning.fine_tuning import FineTuningConfig
from engine.config.run import TrainRun
from engine.errors import TrainerError
from engine.tokens import TokenRecord
from engine.trainer.async_trainer import AsyncTrainer
from engine.trainer.batch import IMITATION
from engine.trainer.factory import TrainingSetup
from engine.trainer.processes.group import TrainerGroup
from tests.unit.trainer.builders.trainer_builders import processes_of
from tests.unit.trainer.sft.test_fine_tuning import START, chat, model, records, trainer
from tests.unit.trainer.test_async_trainer import CURSOR, GROUPS, config, opened, threads

__all__ = ["chat", "config", "records"]


async def test_two_ranks_imitate_like_a_single_trainer(records: list[TokenRecord], tmp_path: Path) -> None:
    alone = trainer(model(), tokens_per_microbatch=128)
    config = FineTuningConfig(
        learning_rate=1e-3, threads=1, tokens_per_microbatch=128, data_parallel=2, device="cpu"
    )
    setup = TrainingSetup(
        checkpoint=START,
        trainer=config.trainer(10),
        algorithm=IMITATION,
        max_context=64,
        longest=0,
        seed=0,
        sampled_here=False,
    )
    ranks = await AsyncTrainer.open(setup, run_dir=tmp_path, home=tmp_path, checkpoint=None)
    try:
        for _ in range(2):
            expected = alone.imitate(records, rate=1e-3)
            metrics = await ranks.imitate(records, rate=1e-3)
            assert metrics["loss/value"] == pytest.approx(expected["loss/value"], rel=1e-5)
            assert metrics["grad/norm"] == pytest.approx(expected["grad/norm"], rel=1e-4)
        assert await ranks.cross_entropy(records) == pytest.approx(alone.cross_entropy(records), rel=1e-4)
    finally:
        await ranks.close()
        alone.close()


async def test_cancelled_update_ends_the_rank_processes(config: TrainRun, tmp_path: Path) -> None:
    trainer = await opened(config, tmp_path, data_parallel=2)
    assert isinstance(trainer._trainer, TrainerGroup)
    processes = processes_of(trainer._trainer)
    update = asyncio.create_task(trainer.update(GROUPS * 1000, temperature=1.0))
    await asyncio.sleep(0.3)
    update.cancel()
    with pytest.raises(asyncio.CancelledError):
        await update
    assert all(process.ending() is not None for process in processes)
    with pytest.raises(TrainerError):
        await trainer.snapshot(tmp_path, 1, **CURSOR)
    await trainer.close()
    assert not threads()
