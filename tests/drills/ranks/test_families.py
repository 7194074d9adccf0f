"""Models of every family in two ranks: equal to one, sharded as they are read, saved and resumed."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.multiprocessing.spawn import spawn

from engine.config.algorithm import AlgorithmConfig
from engine.config.trainer import TrainerConfig
from engine.models.opening import open_model, write_policy_files
from engine.trainer.processes.rank import open_policy
from engine.trainer.ranks import ALONE, Ranks
from engine.trainer.trainer import Trainer
from tests.unit.models.tiny_families import CONFIGS, write_tiny
from tests.unit.trainer.rl_model import make_groups, make_model

REWARDS = [[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0]]
GROUPS = make_groups(make_model(seed=1), REWARDS)
CPU = torch.device("cpu")
IN_PROPORTION = {"epsilon": 1.0, "learning_rate": 1.0}
"""Steps in proportion to gradients: at AdamW's usual epsilon the sign of a tiny one decides a whole step."""
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    **{family: (family, {}, IN_PROPORTION) for family in CONFIGS},
    "offloaded": ("qwen3", {}, {**IN_PROPORTION, "cpu_offload": True}),
    "8 bits": (
        "qwen3",
        {"hidden_size": 64, "intermediate_size": 256, "tie_word_embeddings": True},
        {"epsilon": 1e-3, "learning_rate": 1e-3, "optimizer": "adamw_8bit"},
    ),
}


def trainer_of(folder: Path, ranks: Ranks, **settings: Any) -> Trainer:
    shape = {"data_parallel": ranks.data_size, "context_parallel": ranks.context_size}
    config = TrainerConfig(**{"minibatches": 2, "threads": 1} | settings | shape)
    policy = open_policy(str(folder), folder, CPU)
    return Trainer(policy, algorithm=AlgorithmConfig(), config=config, max_context=64, seed=5, ranks=ranks)


def updated(trainer: Trainer) -> dict[str, Tensor]:
    trainer.update(GROUPS, temperature=1.0)
    return {name: weight.detach().clone() for name, weight in trainer.weights()}


def _rank(rank: int, home: Path) -> None:
    """Two updates of every case, saved after the first."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{home}/store", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("data", "context"))
    found: dict[str, Any] = {}
    for case, (_, _, settings) in CASES.items():
        trainer = trainer_of(home / case, Ranks.of(mesh), **settings)
        first = updated(trainer)
        checkpoint = home / "checkpoints" / case
        if rank == 0:
            checkpoint.mkdir(parents=True)
            write_policy_files(checkpoint, open_model(str(home / case), home=home, read=False), {})
        dist.barrier()
        trainer.save(checkpoint / "shards").result()
        found[case] = first, updated(trainer)
        trainer.close()
    torch.save(found, home / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        for case, (family, sizes, _) in CASES.items():
            write_tiny(Path(folder) / case, family, **sizes)
        spawn(_rank, args=(Path(folder),), nprocs=2, join=True)  # type: ignore[no-untyped-call]
        yield Path(folder)


@pytest.fixture(scope="module")
def both(home: Path) -> list[dict[str, Any]]:
    return [torch.load(home / f"{rank}.pt") for rank in range(2)]


def assert_near(found: dict[str, Tensor], expected: dict[str, Tensor], start: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    moved = sum(float((weight - start[name]).norm()) for name, weight in expected.items())
    assert moved > 1e-3
    for name, weight in expected.items():
        step = (weight - start[name]).norm()
        assert (found[name] - weight).norm() <= 1e-6 * weight.norm() + 1e-3 * step, name


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_are_one_and_resume_in_one(case: str, home: Path, both: list[dict[str, Any]]) -> None:
    settings = {name: value for name, value in CASES[case][2].items() if name != "cpu_offload"}
    alone = trainer_of(home / case, ALONE, **settings)
    start = {name: weight.detach().clone() for name, weight in alone.weights()}
    first, second = updated(alone), updated(alone)
    alone.close()
    for found in both:
        assert_near(found[case][0], first, start)
        assert_near(found[case][1], second, start)
    folder = home / "checkpoints" / case
    resumed = trainer_of(folder, ALONE, **settings)
    assert all(torch.equal(weight, both[0][case][0][name]) for name, weight in resumed.weights())
    resumed.restore(folder / "shards")
    resumed.updates = 1
    assert_near(updated(resumed), second, start)
    resumed.close()


def test_eight_bits_are_used_and_survive_in_every_bit(home: Path, tmp_path: Path) -> None:
    from torchao.optim.subclass_8bit import OptimState8bit  # type: ignore[import-untyped]

    settings = CASES["8 bits"][2]
    trainer = trainer_of(home / "8 bits", ALONE, **settings)
    updated(trainer)
    moments = trainer.state()["optimizer"]["model.embed_tokens.weight"]
    assert isinstance(moments["exp_avg"], OptimState8bit)
    write_policy_files(tmp_path, open_model(str(home / "8 bits"), home=home, read=False), {})
    trainer.save(tmp_path / "shards").result()
    expected = updated(trainer)
    trainer.close()
    resumed = trainer_of(tmp_path, ALONE, **settings)
    resumed.restore(tmp_path / "shards")
    resumed.updates = 1
    found = updated(resumed)
    resumed.close()
    assert all(torch.equal(weight, expected[name]) for name, weight in found.items())
