"""A trainer in child processes: same updates, sharded checkpoints, and failures that do not hang."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config.algorithm import AlgorithmConfig
from engine.config.trainer import TrainerConfig
from engine.errors import CheckpointError, RankLostError, TrainerError
from engine.models.builtin.transformer import Transformer
from engine.models.opening import open_model, save_policy_checkpoint
from engine.ray.placement import ignore
from engine.trainer.checkpoints.checkpoint import load_latest, restore_training, write_snapshot
from engine.trainer.processes.group import TrainerGroup
from engine.trainer.processes.launchers import open_launcher
from engine.trainer.processes.link import ADDRESS, KEY, RankListener
from engine.trainer.processes.rank import RankSettings
from engine.trainer.trainer import Trainer
from engine.types import Group
from tests.unit.trainer.checkpoint_builders import snapshot_of
from tests.unit.trainer.rl_model import make_groups, make_model
from tests.unit.trainer.rl_training_script import TOKENIZER_SIZE, make_tokenizer
from tests.unit.trainer.trainer_builders import processes_of

torch.set_num_threads(1)
REWARDS = [[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0]]


def trainer_config(**settings: Any) -> TrainerConfig:
    return TrainerConfig(**{"minibatches": 2, "learning_rate": 1e-3, "threads": 1} | settings)


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
    found = TrainerGroup(settings, launcher, sampler=sampler)
    try:
        yield found
    finally:
        found.close()


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home") / "policy"
    save_policy_checkpoint(folder, make_model(vocab=TOKENIZER_SIZE), make_tokenizer(), {})
    return folder


def episodes() -> list[Group]:
    return make_groups(make_model(seed=1), REWARDS)


def distance(a: Transformer, b: Transformer) -> float:
    flat = [torch.cat([p.detach().flatten() for p in model.parameters()]) for model in (a, b)]
    return float((flat[0] - flat[1]).norm() / flat[1].norm())


def test_updates_checkpoints_and_another_number_of_ranks(tmp_path: Path, policy: Path) -> None:
    single, shared = make_model(vocab=TOKENIZER_SIZE), make_model(vocab=TOKENIZER_SIZE)
    trainer = alone(single)
    with group(policy, shared) as ranks:
        for _ in range(2):
            expected = trainer.update(episodes(), temperature=1.0)
            found = ranks.update(episodes(), temperature=1.0)
            assert found.members == expected.members
            assert found.optimizer_steps == expected.optimizer_steps == 2
            assert distance(shared, single) <= 1e-6
        write_snapshot(snapshot_of(tmp_path, 2, ranks, model=shared, tokenizer=make_tokenizer()))
        ranks.update(episodes(), temperature=1.0)
    checkpoint = load_latest(tmp_path)
    assert checkpoint is not None
    assert len(list((checkpoint.path / "shards").glob("*.distcp"))) == 2
    trainer.update(episodes(), temperature=1.0)
    again, _ = open_model(str(checkpoint.path), home=tmp_path).builtin()
    resumed = alone(again)
    restore_training(checkpoint, resumed)
    resumed.update(episodes(), temperature=1.0)
    assert distance(again, single) <= 1e-6
    for number in (2, 3):
        sampler, _ = open_model(str(checkpoint.path), home=tmp_path).builtin()
        with group(checkpoint.path, sampler, ranks=number) as others:
            restore_training(checkpoint, others)
            others.update(episodes(), temperature=1.0)
            assert distance(sampler, single) <= 1e-6
            if number == 2:
                assert all(
                    torch.equal(*pair) for pair in zip(shared.parameters(), sampler.parameters(), strict=True)
                )


def test_one_rank_resumes_in_two(tmp_path: Path, policy: Path) -> None:
    single = make_model(vocab=TOKENIZER_SIZE)
    trainer = alone(single)
    trainer.update(episodes(), temperature=1.0)
    checkpoint = write_snapshot(snapshot_of(tmp_path, 1, trainer, model=single, tokenizer=make_tokenizer()))
    trainer.update(episodes(), temperature=1.0)
    sampler, _ = open_model(str(checkpoint.path), home=tmp_path).builtin()
    smaller = alone(make_model())
    smaller.update(episodes(), temperature=1.0)
    other = tmp_path / "other"
    smaller.save(other / "shards").result()
    with group(checkpoint.path, sampler) as ranks:
        restore_training(checkpoint, ranks)
        ranks.update(episodes(), temperature=1.0)
        assert distance(sampler, single) <= 1e-6
        assert ranks.updates == 2
        (tmp_path / "file").write_text("in the way")
        with pytest.raises(CheckpointError, match=r"rank \d cannot write its shards"):
            ranks.save(tmp_path / "file").result(timeout=240)
        ranks.update(episodes(), temperature=1.0)
        with pytest.raises(CheckpointError, match="does not belong to this model"):
            ranks.restore(other / "shards")
        ranks.update(episodes(), temperature=1.0)


def test_a_rank_that_fails_or_dies_ends_the_group(policy: Path) -> None:
    with group(policy, None) as ranks, pytest.raises(TrainerError, match=r"rank \d of the trainer failed"):
        ranks.update(episodes(), temperature="hot")  # type: ignore[arg-type]
    with group(policy, None) as ranks:
        processes_of(ranks)[1].kill()
        with pytest.raises(RankLostError, match="rank 1 of the trainer ended"):
            ranks.update(episodes(), temperature=1.0)
        assert all(process.poll() is not None for process in processes_of(ranks))
        with pytest.raises(RankLostError, match="rank 1 of the trainer ended"):
            ranks.update(episodes(), temperature=1.0)


def test_a_rank_that_hangs_is_named(policy: Path) -> None:
    with group(policy, None) as ranks:
        assert ranks._watch is not None
        ranks._watch._timeout_s = 20  # only now: a rank may take longer to start on a busy machine
        os.kill(processes_of(ranks)[1].pid, signal.SIGSTOP)
        with pytest.raises(TrainerError, match="rank 1 of the trainer gave no sign of life for 20 s"):
            ranks.update(episodes(), temperature=1.0)
        assert all(process.poll() is not None for process in processes_of(ranks))


def test_a_rank_that_cannot_start_is_named(policy: Path) -> None:
    with (
        pytest.raises(TrainerError, match=r"rank \d of the trainer failed: there is no model folder"),
        group(policy / "nowhere", None),
    ):
        pass


def test_torchrun_starts_the_ranks(policy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        monkeypatch.setenv(ADDRESS, f"127.0.0.1:{free.getsockname()[1]}")
    with (
        pytest.raises(TrainerError, match=f"{KEY} has 0 characters"),
        group(policy, None, launcher="torchrun"),
    ):
        pass
    monkeypatch.setenv(KEY, "a secret of the two sides")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    torchrun = subprocess.Popen([*command, "-m", "engine.trainer", "rank"])
    try:
        single, sampler = make_model(vocab=TOKENIZER_SIZE), make_model(vocab=TOKENIZER_SIZE)
        with group(policy, sampler, launcher="torchrun") as ranks:
            ranks.update(episodes(), temperature=1.0)
        alone(single).update(episodes(), temperature=1.0)
        assert distance(sampler, single) <= 1e-6
        assert torchrun.wait(timeout=240) == 0
    finally:
        torchrun.kill()
        torchrun.wait()


def test_a_stranger_gets_no_connection() -> None:
    listener = RankListener(b"the key of the ranks")
    host, port = listener.address.split(":")
    assert host == "127.0.0.1"
    found: list[Any] = []
    accepting = threading.Thread(target=lambda: found.append(listener.accept(60)))
    accepting.start()
    with pytest.raises(AuthenticationError):
        Client((host, int(port)), authkey=b"another key of somebody")
    accepting.join()
    assert found == [None]
    listener.close()
