"""Weights out of two ranks: those of an export, in the memory of a shard."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from engine.config.algorithm import AlgorithmConfig
from engine.config.policies import TransformerPolicyConfig
from engine.config.run import TrainRun, parse_run_config
from engine.config.trainer import TrainerConfig
from engine.inference.vllm.publishing.transfer import WriteFolder
from engine.models.opening import open_model, save_policy_checkpoint
from engine.trainer.async_trainer import AsyncTrainer
from engine.trainer.checkpoints.checkpoint import write_snapshot
from engine.trainer.export import export_policy
from engine.trainer.factory import TrainingSetup
from engine.trainer.processes.group import TrainerGroup
from engine.trainer.processes.launchers import LocalRanks
from engine.trainer.processes.rank import RankSettings
from tests.unit.models.chat_templates import TEMPLATES
from tests.unit.models.tiny_families import write_tiny
from tests.unit.trainer.rl_model import make_groups, make_model
from tests.unit.trainer.rl_training_script import TOKENIZER_SIZE, make_tokenizer
from tests.unit.trainer.trainer_builders import processes_of
from tests.unit.trainer.weight_consumers import IDS, Drop, Hoard, Store

GROUPS = make_groups(make_model(vocab=TOKENIZER_SIZE), [[1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 0.25, 1.0]])


def configured(checkpoint: Path, **trainer: Any) -> TrainRun:
    settings = {"threads": 1, "minibatches": 1, "tokens_per_microbatch": 64, "device": "cpu"}
    config = parse_run_config(
        {
            "kind": "train",
            "name": "t",
            "dataset": {"name": "d"},
            "agent": {"max_context": 512, "max_response": 256},
            "policy": TransformerPolicyConfig(checkpoint=str(checkpoint)).model_dump(mode="json"),
            "trainer": {**settings, **trainer},
            "seed": 5,
        }
    )
    assert isinstance(config, TrainRun)
    return config


async def opened(checkpoint: Path, folder: Path, **trainer: Any) -> AsyncTrainer:
    config = configured(checkpoint, **trainer)
    return await AsyncTrainer.open(TrainingSetup.of(config), run_dir=folder, home=folder, checkpoint=None)


def exported(folder: Path, dtype: str) -> dict[str, Tensor]:
    files = folder.glob("*.safetensors")
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def policy_of(family: str, folder: Path) -> Path:
    if family == "builtin":
        save_policy_checkpoint(folder, make_model(vocab=TOKENIZER_SIZE), make_tokenizer(), {})
        return folder
    return write_tiny(folder, family, chat_template=TEMPLATES["qwen3"])


@pytest.mark.parametrize("family", ["builtin", "qwen2", "qwen3_moe"])
async def test_they_are_those_of_an_export_of_the_same_moment(tmp_path: Path, family: str) -> None:
    policy = policy_of(family, tmp_path / "policy")
    trainer = await opened(policy, tmp_path, data_parallel=2)
    await trainer.send_weights(Store(tmp_path / "before"))
    await trainer.update(GROUPS, temperature=1.0)
    cursor: dict[str, Any] = {"cursor": {}, "provenance": {}, "score": None}
    checkpoint = write_snapshot(await trainer.snapshot(tmp_path, 1, **cursor))
    before = load_file(tmp_path / "before")
    for dtype in ("float32", "bfloat16"):
        export_policy(checkpoint.path, tmp_path / dtype, dtype=dtype)
        names, adapter = await trainer.send_weights(Store(tmp_path / "sent", getattr(torch, dtype)))
        assert adapter is None
        found, expected = load_file(tmp_path / "sent"), exported(tmp_path / dtype, dtype)
        assert set(names) == set(found) == set(expected) == set(before)
        for name, tensor in expected.items():
            assert torch.equal(found[name], tensor), name
    assert any(not torch.equal(before[name].bfloat16(), tensor) for name, tensor in found.items())
    await trainer.close()


@pytest.mark.parametrize("settings", [{"data_parallel": 2}, {"context_parallel": 2}])
async def test_log_probabilities_are_those_of_a_whole_forward(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    policy = policy_of("builtin", tmp_path / "policy")
    trainer = await opened(policy, tmp_path, **settings)
    await trainer.update(GROUPS, temperature=1.0)
    found = await trainer.logprobs(IDS)
    again = await trainer.logprobs(IDS)
    model = trainer.model  # the sampler's, which has the same weights
    from engine.models.attention import Segments

    with torch.no_grad():
        hidden = model.packed_hidden(torch.tensor(IDS), Segments.whole([len(IDS)], torch.device("cpu")))
        table = torch.log_softmax(hidden @ model.head.weight.T, dim=-1)
    expected = table[:-1].gather(1, torch.tensor(IDS)[1:, None]).squeeze(1)
    assert torch.allclose(torch.tensor(found), expected, atol=1e-5)
    assert found == again
    await trainer.update(GROUPS, temperature=1.0)
    assert await trainer.logprobs(IDS) != found
    await trainer.close()


async def test_of_adapters_only_the_adapters_are_sent(tmp_path: Path) -> None:
    policy = write_tiny(tmp_path / "policy", "qwen3", chat_template=TEMPLATES["qwen3"])
    trainer = await opened(policy, tmp_path, data_parallel=2, lora_rank=2, lora_targets=["q_proj"])
    await trainer.update(GROUPS, temperature=1.0)
    names, settings = await trainer.send_weights(Store(tmp_path / "adapter_model.safetensors"))
    assert len(names) == 4
    assert all(name.startswith("base_model.model.model.layers.") for name in names)
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings))
    ids = torch.tensor([IDS])

    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32)
    with torch.no_grad():
        plain = base(ids).logits
        adapted = PeftModel.from_pretrained(base, tmp_path)(ids).logits
    assert (adapted - plain).abs().max() > 1e-6
    table = torch.log_softmax(adapted[0, :-1], dim=-1)
    expected = table.gather(1, ids[0, 1:, None]).squeeze(1)
    assert torch.allclose(torch.tensor(await trainer.logprobs(IDS)), expected, atol=1e-5)
    await trainer.close()


@pytest.mark.parametrize("settings", [{}, {"lora_rank": 2}])
async def test_with_ranks_and_vllm_this_process_holds_no_weights(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    policy = write_tiny(tmp_path / "policy", "qwen3", chat_template=TEMPLATES["qwen3"])
    found = {}
    for engine in ("builtin", "vllm"):
        config = configured(policy, data_parallel=2, **settings)
        config = config.model_copy(update={"policy": config.policy.model_copy(update={"engine": engine})})
        folder = tmp_path / engine
        folder.mkdir()
        trainer = await AsyncTrainer.open(
            TrainingSetup.of(config), run_dir=folder, home=folder, checkpoint=None
        )
        assert all(p.is_meta for p in trainer.model.parameters()) is (engine == "vllm")
        assert trainer.chat.open([{"role": "user", "content": "a"}])
        await trainer.update(GROUPS, temperature=1.0)
        cursor: dict[str, Any] = {"cursor": {}, "provenance": {}, "score": None}
        checkpoint = write_snapshot(await trainer.snapshot(folder, 1, **cursor))
        await trainer.close()
        again = await AsyncTrainer.open(
            TrainingSetup.of(config), run_dir=folder, home=folder, checkpoint=checkpoint
        )
        await again.update(GROUPS, temperature=1.0)
        await again.send_weights(Store(folder / "sent"))
        found[engine] = load_file(folder / "sent"), await again.logprobs(IDS)
        await again.close()
    assert found["builtin"][1] == found["vllm"][1]
    for name, tensor in found["builtin"][0].items():
        assert torch.equal(tensor, found["vllm"][0][name]), name


def memory(pid: int, name: str) -> int:
    """Return a number of a process's ``/proc/PID/status`` in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


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
    group = TrainerGroup(settings, LocalRanks())
    try:
        yield group, whole
    finally:
        group.close()


def peaks(group: TrainerGroup, consumer: Any) -> list[int]:
    """Return the memory that each rank needs on top to send its weights, in bytes."""
    pids = [process.pid for process in processes_of(group)]
    for pid in pids:
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # forgets the peak so far
    before = [memory(pid, "VmRSS:") for pid in pids]
    assert group.send_weights(consumer)
    return [memory(pid, "VmHWM:") - start for pid, start in zip(pids, before, strict=True)]


def test_no_rank_holds_a_second_copy(large: tuple[TrainerGroup, int], tmp_path: Path) -> None:
    group, whole = large
    group.send_weights(Drop())  # first use of whatever is kept
    written = WriteFolder(folder=tmp_path / "1", dtype=torch.float32, bucket_bytes=16 << 20)
    found = {"drop": peaks(group, Drop()), "write": peaks(group, written)}
    assert max(max(of_ranks) for of_ranks in found.values()) <= 0.5 * whole, (found, whole)
    assert peaks(group, Hoard())[0] > 0.8 * whole, "what keeps everything would show"
