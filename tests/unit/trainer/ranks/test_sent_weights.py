"""Sending of weights: published names, equality with exports, refusal after incomplete updates."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from engine.errors import PublicationError, TrainerError, UpdateAbandonedError
from engine.models.loader import save_policy_checkpoint
from engine.trainer.async_trainer import AsyncTrainer
from engine.trainer.checkpoints.checkpoint import write_snapshot
from engine.trainer.export import export_policy
from engine.trainer.factory import TrainingSetup
from engine.trainer.trainer import Trainer
from tests.unit.models.chat.chat_templates import TEMPLATES
from tests.unit.models.small import recomputed
from tests.unit.models.tiny_families import write_tiny
from tests.unit.trainer.builders.rl_model import make_groups, make_model
from tests.unit.trainer.builders.rl_training_script import TOKENIZER_SIZE, make_tokenizer
from tests.unit.trainer.builders.trainer_builders import make_run
from tests.unit.trainer.builders.weight_consumers import IDS, Broken, Drop, Store

GROUPS = make_groups(make_model(vocab=TOKENIZER_SIZE), [[1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 0.25, 1.0]])


async def opened(checkpoint: Path, folder: Path, **trainer: Any) -> AsyncTrainer:
    config = make_run(checkpoint, **trainer)
    return await AsyncTrainer.open(TrainingSetup.of(config), run_dir=folder, home=folder, checkpoint=None)


def exported(folder: Path, dtype: str) -> dict[str, Tensor]:
    files = folder.glob("*.safetensors")
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def policy_of(family: str, folder: Path) -> Path:
    if family == "builtin":
        save_policy_checkpoint(folder, make_model(vocab=TOKENIZER_SIZE), make_tokenizer(), {})
        return folder
    return write_tiny(folder, family, chat_template=TEMPLATES["qwen3"])


@pytest.mark.parametrize("family", ["builtin", "qwen3_moe"])
async def test_sent_weights_equal_those_of_a_simultaneous_export(tmp_path: Path, family: str) -> None:
    await assert_sent_as_exported(tmp_path, family)


async def assert_sent_as_exported(tmp_path: Path, family: str, **settings: Any) -> None:
    policy = policy_of(family, tmp_path / "policy")
    trainer = await opened(policy, tmp_path, **settings)
    await trainer.send_weights(Store(tmp_path / "before"))
    await trainer.update(GROUPS, temperature=1.0)
    cursor: dict[str, Any] = {"cursor": {}, "provenance": {}}
    checkpoint = write_snapshot(await trainer.snapshot(tmp_path, 1, **cursor))
    before = load_file(tmp_path / "before")
    for dtype in ("float32", "bfloat16"):
        export_policy(checkpoint.path, tmp_path / dtype, dtype=dtype)
        names, adapter = await trainer.send_weights(Store(tmp_path / "sent", getattr(torch, dtype)))
        assert adapter is None
        sent, expected = load_file(tmp_path / "sent"), exported(tmp_path / dtype, dtype)
        assert set(names) == set(sent) == set(expected) == set(before)
        for name, tensor in expected.items():
            assert torch.equal(sent[name], tensor), name
    assert any(not torch.equal(before[name].bfloat16(), tensor) for name, tensor in sent.items())
    await trainer.close()


@pytest.mark.parametrize("settings", [{}, {"lora_rank": 2}])
async def test_trainer_logprobs_equal_those_of_a_full_forward_pass(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    policy = policy_of("builtin", tmp_path / "policy")
    trainer = await opened(policy, tmp_path, **settings)
    await trainer.update(GROUPS, temperature=1.0)
    logprobs = await trainer.logprobs(IDS)
    repeated = await trainer.logprobs(IDS)
    expected = recomputed(trainer.model, IDS)  # with the sampler's copy of the weights
    assert logprobs == pytest.approx(expected, abs=1e-5)
    assert logprobs == repeated
    await trainer.update(GROUPS, temperature=1.0)
    assert await trainer.logprobs(IDS) != logprobs
    await trainer.close()


async def test_adapter_training_sends_only_the_adapters(tmp_path: Path) -> None:
    policy = write_tiny(tmp_path / "policy", "qwen3", chat_template=TEMPLATES["qwen3"])
    trainer = await opened(policy, tmp_path, lora_rank=2, lora_targets=["q_proj"])
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


async def test_training_and_sending_continue_after_a_consumer_failure(tmp_path: Path) -> None:
    trainer = await opened(policy_of("builtin", tmp_path / "policy"), tmp_path)
    with pytest.raises(PublicationError, match="OSError: no space left"):
        await trainer.send_weights(Broken())
    assert (await trainer.update(GROUPS, temperature=1.0)).optimizer_steps == 1
    names, _ = await trainer.send_weights(Store(tmp_path / "sent"))
    assert names
    await trainer.close()


async def test_incomplete_updates_are_never_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = policy_of("builtin", tmp_path / "policy")
    trainer = await opened(policy, tmp_path, minibatches=2)
    steps = iter([Trainer._step])

    def once(self: Trainer, *arguments: Any) -> None:
        step = next(steps, None)
        if step is None:
            raise RuntimeError("CUDA out of memory")
        step(self, *arguments)

    monkeypatch.setattr(Trainer, "_step", once)
    with pytest.raises(TrainerError, match="out of memory"):
        await trainer.update(GROUPS, temperature=1.0)
    with pytest.raises(TrainerError, match="was not completed"):
        await trainer.send_weights(Store(tmp_path / "sent"))
    await trainer.close()
    monkeypatch.undo()
    trainer = await opened(policy, tmp_path / "abandoned")
    trainer._trainer.abandon()
    with pytest.raises(UpdateAbandonedError):
        await trainer.send_weights(Store(tmp_path / "sent"))
    assert not (tmp_path / "sent").exists()
    await trainer.close()


async def test_model_failures_while_sending_or_scoring_raise_trainer_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = await opened(policy_of("builtin", tmp_path / "policy"), tmp_path)

    def out_of_memory(*_arguments: Any, **_settings: Any) -> None:
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr(Trainer, "_stream", out_of_memory)
    monkeypatch.setattr(Trainer, "_batch", out_of_memory)
    with pytest.raises(TrainerError, match="sending the weights failed: RuntimeError: CUDA out of memory"):
        await trainer.send_weights(Drop())
    with pytest.raises(TrainerError, match="scoring the probe failed: RuntimeError: CUDA out of memory"):
        await trainer.logprobs(IDS)
    await trainer.close()


async def test_event_loop_keeps_running_while_weights_are_sent(tmp_path: Path) -> None:
    trainer = await opened(policy_of("builtin", tmp_path / "policy"), tmp_path)
    turns, sending = 0, asyncio.ensure_future(trainer.send_weights(Store(tmp_path / "sent")))
    while not sending.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns > 1
    assert (await sending)[0]
    await trainer.close()
