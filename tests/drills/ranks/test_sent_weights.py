"""Weights sent by two ranks equal an export and need the memory of a shard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from engine.config.learning.algorithm import AlgorithmConfig
from engine.config.learning.trainer import TrainerConfig
from engine.inference.vllm.publishing.transfer import WriteFolder
from engine.models.loader import open_model
from engine.processes.launchers import LocalProcesses
from engine.trainer.async_trainer import AsyncTrainer
from engine.trainer.checkpoints.checkpoint import write_snapshot
from engine.trainer.factory import TrainingSetup
from engine.trainer.processes.group import TrainerGroup
from engine.trainer.processes.rank import RankSettings
from tests.builders.process_memory import forget_peak, memory
from tests.unit.models.chat.chat_templates import TEMPLATES
from tests.unit.models.tiny_families import write_tiny
from tests.unit.trainer.builders.trainer_builders import make_run, pids_of
from tests.unit.trainer.builders.weight_consumers import IDS, Drop, Hoard, Store
from tests.unit.trainer.ranks.test_sent_weights import GROUPS, assert_sent_as_exported


@pytest.mark.parametrize("family", ["builtin", "qwen2", "qwen3_moe"])
async def test_weights_sent_by_two_ranks_equal_an_export(tmp_path: Path, family: str) -> None:
    await assert_sent_as_exported(tmp_path, family, data_parallel=2)


@pytest.mark.parametrize("settings", [{}, {"lora_rank": 2}])
async def test_controller_of_ranks_holds_no_weights_with_vllm(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    policy = write_tiny(tmp_path / "policy", "qwen3", chat_template=TEMPLATES["qwen3"])
    results = {}
    for engine in ("builtin", "vllm"):
        config = make_run(policy, engine=engine, data_parallel=2, **settings)
        folder = tmp_path / engine
        folder.mkdir()
        trainer = await AsyncTrainer.open(
            TrainingSetup.of(config), run_dir=folder, home=folder, checkpoint=None
        )
        assert all(p.is_meta for p in trainer.model.parameters()) is (engine == "vllm")
        assert trainer.chat.open([{"role": "user", "content": "a"}])
        await trainer.update(GROUPS, temperature=1.0)
        cursor: dict[str, Any] = {"cursor": {}, "provenance": {}}
        checkpoint = write_snapshot(await trainer.snapshot(folder, 1, **cursor))
        await trainer.close()
        resumed = await AsyncTrainer.open(
            TrainingSetup.of(config), run_dir=folder, home=folder, checkpoint=checkpoint
        )
        await resumed.update(GROUPS, temperature=1.0)
        await resumed.send_weights(Store(folder / "sent"))
        results[engine] = load_file(folder / "sent"), await resumed.logprobs(IDS)
        await resumed.close()
    assert results["builtin"][1] == results["vllm"][1]
    for name, tensor in results["builtin"][0].items():
        assert torch.equal(tensor, results["vllm"][0][name]), name


@pytest.fixture
def large(tmp_path: Path) -> Iterator[tuple[TrainerGroup, int]]:
    """Two ranks with a model of half a gigabyte, and its size in bytes."""
    folder = write_tiny(
        tmp_path / "large", "qwen3_moe", vocab_size=8_000, hidden_size=512, intermediate_size=512,
        num_hidden_layers=7, num_attention_heads=8, head_dim=64, num_experts=32, moe_intermediate_size=384,
    )  # fmt: skip
    settings = RankSettings(
        policy=str(folder),
        reference=None,
        home=tmp_path,
        algorithm=AlgorithmConfig(),
        config=TrainerConfig(data_parallel=2, threads=1),
        max_context=64,
        seed=0,
        device="cpu",
    )
    whole = sum(p.numel() * 4 for p in open_model(str(folder), home=tmp_path, read=False).model.parameters())
    group = TrainerGroup(settings, LocalProcesses())
    try:
        yield group, whole
    finally:
        group.close()


def peaks(group: TrainerGroup, consumer: Any) -> list[int]:
    """Return the additional memory of each rank while it sends its weights, in bytes."""
    pids = pids_of(group)
    for pid in pids:
        forget_peak(pid)
    before = [memory("VmRSS:", pid) for pid in pids]
    assert group.send_weights(consumer)
    return [memory("VmHWM:", pid) - start for pid, start in zip(pids, before, strict=True)]


def test_sending_weights_copies_no_whole_model(large: tuple[TrainerGroup, int], tmp_path: Path) -> None:
    group, whole = large
    group.send_weights(Drop())  # allocate lasting buffers
    written = WriteFolder(folder=tmp_path / "1", dtype=torch.float32, bucket_bytes=16 << 20)
    peak_bytes = {"drop": peaks(group, Drop()), "write": peaks(group, written)}
    assert max(max(of_ranks) for of_ranks in peak_bytes.values()) <= 0.5 * whole, (peak_bytes, whole)
    assert peaks(group, Hoard())[0] > 0.8 * whole, "what keeps everything would show"
