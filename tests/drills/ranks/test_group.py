"""Trainers in child processes: other numbers of ranks, torchrun, and failures without hangs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engine.errors import TrainerError
from engine.models.loader import open_model
from engine.trainer.checkpoints.checkpoint import restore_training, write_snapshot
from engine.trainer.processes.link import ADDRESS, KEY
from tests.unit.trainer.builders.checkpoint_builders import snapshot_of
from tests.unit.trainer.builders.group_builders import (
    alone,
    distance,
    episodes,
    group,
    whole_model,
    write_policy,
)
from tests.unit.trainer.builders.rl_training_script import make_tokenizer
from tests.unit.trainer.builders.trainer_builders import pids_of, processes_of

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_policy(tmp_path_factory.mktemp("home") / "policy")


def test_checkpoints_resume_in_any_number_of_ranks(tmp_path: Path, policy: Path) -> None:
    single, shared = whole_model(), whole_model()
    trainer = alone(single)
    with group(policy, shared) as ranks:
        for _ in range(2):
            trainer.update(episodes(), temperature=1.0)
            ranks.update(episodes(), temperature=1.0)
        checkpoint = write_snapshot(snapshot_of(tmp_path, 2, ranks, model=shared, tokenizer=make_tokenizer()))
        ranks.update(episodes(), temperature=1.0)
    trainer.update(episodes(), temperature=1.0)
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


def test_checkpoint_of_one_rank_resumes_in_two(tmp_path: Path, policy: Path) -> None:
    single = whole_model()
    trainer = alone(single)
    trainer.update(episodes(), temperature=1.0)
    checkpoint = write_snapshot(snapshot_of(tmp_path, 1, trainer, model=single, tokenizer=make_tokenizer()))
    trainer.update(episodes(), temperature=1.0)
    sampler, _ = open_model(str(checkpoint.path), home=tmp_path).builtin()
    with group(checkpoint.path, sampler) as ranks:
        restore_training(checkpoint, ranks)
        ranks.update(episodes(), temperature=1.0)
        assert distance(sampler, single) <= 1e-6
        assert ranks.updates == 2


def test_failed_rank_ends_the_group(policy: Path) -> None:
    with group(policy, None) as ranks, pytest.raises(TrainerError, match=r"rank \d of the trainer failed"):
        ranks.update(episodes(), temperature="hot")  # type: ignore[arg-type]


def test_group_reports_a_hanging_rank_and_ends(policy: Path) -> None:
    with group(policy, None) as ranks:
        assert ranks._watch is not None
        ranks._watch._timeout_s = 20  # not at the start, which may take longer on a busy machine
        os.kill(pids_of(ranks)[1], signal.SIGSTOP)
        with pytest.raises(TrainerError, match="rank 1 of the trainer gave no sign of life for 20 s"):
            ranks.update(episodes(), temperature=1.0)
        assert all(process.ending() is not None for process in processes_of(ranks))


def test_group_reports_a_rank_that_cannot_start(policy: Path) -> None:
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
        single, sampler = whole_model(), whole_model()
        with group(policy, sampler, launcher="torchrun") as ranks:
            ranks.update(episodes(), temperature=1.0)
        alone(single).update(episodes(), temperature=1.0)
        assert distance(sampler, single) <= 1e-6
        assert torchrun.wait(timeout=240) == 0
    finally:
        torchrun.kill()
        torchrun.wait()
