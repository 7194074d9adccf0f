"""Updates on the device match updates on the CPU, in every mode of training."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from engine.config.learning.algorithm import AlgorithmConfig
from engine.config.learning.trainer import TrainerConfig
from engine.models.builtin.transformer import Transformer
from engine.trainer.ranks import ALONE, Ranks
from engine.trainer.trainer import Trainer
from tests.unit.trainer.builders.rl_model import make_groups, make_model

pytestmark = pytest.mark.gpu
REWARDS = [[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0]]


def make_trainer(model: Transformer, ranks: Ranks = ALONE, **settings: Any) -> Trainer:
    config = TrainerConfig(**{"minibatches": 2, "learning_rate": 1e-3, "threads": 1} | settings)
    return Trainer(model, algorithm=AlgorithmConfig(), config=config, max_context=64, seed=5, ranks=ranks)


def updated(device: torch.device, ranks: Ranks = ALONE, **settings: Any) -> tuple[Any, dict[str, float]]:
    """Run an update; return the trained weights as one vector on the CPU, and the metrics."""
    trainer = make_trainer(make_model().to(device), ranks, **settings)
    metrics = trainer.update(make_groups(make_model(), REWARDS), temperature=1.0).metrics
    with torch.no_grad():
        weights = torch.cat([weight.detach().flatten().cpu() for _, weight in trainer.weights()])
    trainer.close()
    return weights, metrics


@pytest.mark.parametrize("settings", [{}, {"activation_checkpointing": True}, {"lora_rank": 4}])
def test_float32_update_matches_the_cpu(device: torch.device, settings: dict[str, Any]) -> None:
    (ours, metrics), (theirs, expected) = (
        updated(place, **settings) for place in (device, torch.device("cpu"))
    )
    assert (ours - theirs).norm() <= 1e-4 * theirs.norm()
    assert metrics["loss/value"] == pytest.approx(expected["loss/value"], rel=1e-4, abs=1e-7)
    assert metrics["mismatch/max"] <= 1e-4


@pytest.mark.parametrize(
    ("setting", "names"), [("precision", ("f32", "bf16")), ("optimizer", ("adamw", "adamw_8bit"))]
)
def test_low_precision_updates_have_the_direction_of_precise_ones(
    device: torch.device, setting: str, names: tuple[str, str]
) -> None:
    if setting == "optimizer":
        pytest.importorskip("torchao", reason="trainer.optimizer='adamw_8bit' needs torchao")
    start = torch.cat([p.detach().flatten() for p in make_model().parameters()])
    choices: list[dict[str, Any]] = [{setting: name} for name in names]
    precise, coarse = (updated(device, **choice)[0] - start for choice in choices)
    assert torch.nn.functional.cosine_similarity(coarse, precise, dim=0) > 0.9


@pytest.fixture
def one_rank(device: torch.device) -> Iterator[Ranks]:
    """FSDP2 over a single rank."""
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=0, world_size=1)
        try:
            yield Ranks.of(init_device_mesh(device.type, (1, 1), mesh_dim_names=("data", "context")))
        finally:
            dist.destroy_process_group()


@pytest.mark.parametrize("settings", [{}, {"activation_checkpointing": True}, {"lora_rank": 4}])
def test_update_of_one_sharded_rank_matches_an_unsharded_model(
    device: torch.device, one_rank: Ranks, settings: dict[str, Any]
) -> None:
    (sharded, _), (plain, _) = updated(device, one_rank, **settings), updated(device, **settings)
    assert (sharded - plain).norm() <= 1e-5 * plain.norm()


def test_memory_is_constant_over_updates(device: torch.device) -> None:
    if device.type != "cuda":
        pytest.skip("the memory of a CUDA device is measured")
    trainer = make_trainer(make_model().to(device), activation_checkpointing=True, precision="bf16")
    groups = make_groups(make_model(), REWARDS)
    used = []
    for _ in range(4):
        trainer.update(groups, temperature=1.0)
        gc.collect()
        torch.cuda.synchronize()
        used.append(torch.cuda.memory_allocated())
    assert used[1] == used[2] == used[3]
