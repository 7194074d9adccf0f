"""Attached servers that sample LoRA adapters and are restarted by their owners."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from engine.config.policies import VllmConfig
from engine.inference.base import WeightStream
from engine.inference.vllm.publishing.publication import Publisher, ServedModel
from engine.inference.vllm.publishing.transfer import WriteFolder
from tests.builders.vllm_policies import attached, make_request, until, whole
from tests.fakes.vllm_script import VOCABULARY, adapter_digest, scripted_logprob


class Adapters:
    """Trainer of a one-tensor adapter; its log-probabilities are those of the fake servers."""

    def __init__(self) -> None:
        self.value = 0.0
        self.digest = ""

    async def send_weights(self, consumer: Any) -> Any:
        assert isinstance(consumer, WriteFolder)
        tensors = {"base_model.model.a.lora_A.weight": torch.full((2, 3), self.value)}
        sent = consumer(WeightStream(infos={}, tensors=iter(tensors.items()), adapter={"r": 2}))
        self.digest = adapter_digest(consumer.folder)
        return sent

    async def logprobs(self, ids: Sequence[int]) -> list[float]:
        return [scripted_logprob(token, self.digest) for token in ids[1:]]


def publisher(folder: Path) -> Publisher:
    model = ServedModel(
        vocabulary=VOCABULARY, max_context=256, dtype=torch.float32, base="base", has_adapters=True
    )
    return Publisher(VllmConfig(start_timeout_s=60), model, folder=folder)


async def test_restarted_servers_reload_and_prove_their_adapter(tmp_path: Path) -> None:
    trainer = Adapters()
    async with attached(2, publish=False, publishing=publisher(tmp_path)) as rig:
        for version in (1, 2):
            trainer.value = float(version)
            await rig.policy.publish(version, trainer)
        assert [list(fake.adapters) for fake in rig.fakes] == [["policy-2"]] * 2
        rig.fakes[0].restart()
        requests = [make_request(index) for index in range(6)]
        generations = await asyncio.gather(*map(rig.policy.generate, requests))
        assert [generation.ids for generation in generations] == [
            whole(request, trainer.digest) for request in requests
        ]
        assert all(set(generation.versions) == {2} for generation in generations)
        assert rig.sink.alerts() == ["engine_left_out"]
        await until(lambda: rig.replicas[0].is_ready)
        assert list(rig.fakes[0].adapters) == ["policy-2"]
        assert rig.replicas[0].version == 2


async def test_servers_with_another_adapter_of_the_same_name_stay_out(tmp_path: Path) -> None:
    trainer = Adapters()
    async with attached(2, publish=False, publishing=publisher(tmp_path)) as rig:
        await rig.policy.publish(1, trainer)
        rig.fakes[0].restart()
        rig.fakes[0].fixed_adapter = "of somebody else"
        for index in range(4):
            generation = await rig.policy.generate(make_request(index))
            assert generation.ids == whole(make_request(index), trainer.digest)
        await until(lambda: "does not prove" in rig.replicas[0].detail)
        assert not rig.replicas[0].is_ready
