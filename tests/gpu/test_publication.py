"""Weights from a trainer to a vLLM server, both on GPUs, without files; needs vllm in this environment."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config.learning.algorithm import AlgorithmConfig
from engine.config.learning.trainer import TrainerConfig
from engine.config.policies import VllmConfig
from engine.inference.base import WeightConsumer
from engine.inference.vllm.publishing.live_transfer import LiveTransfer
from engine.inference.vllm.publishing.publication import Publisher, ServedModel
from engine.inference.vllm.servers.server import ServerCommand, VllmServer
from engine.models.builtin.architectures import SHIPPED
from engine.models.loader import open_model
from engine.trainer.trainer import Trainer
from tests.unit.trainer.builders.rl_model import make_groups, make_model

pytestmark = pytest.mark.gpu
GROUPS = make_groups(make_model(vocab=2048), [[1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 0.25, 1.0]])


class Source:
    """A trainer as a source of weights."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    async def send_weights(self, consumer: WeightConsumer) -> Any:
        return self._trainer.send_weights(consumer)

    async def logprobs(self, ids: Sequence[int]) -> list[float]:
        return self._trainer.logprobs(ids)


@pytest.mark.parametrize(("way", "devices"), [("ipc", 1), ("nccl", 2)])
def test_each_version_is_verified(tmp_path: Path, device: torch.device, way: Any, devices: int) -> None:
    if device.type != "cuda" or torch.cuda.device_count() < devices:
        pytest.skip(f"needs {devices} CUDA devices")
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("needs vllm in this environment")
    asyncio.run(publish_versions(tmp_path, device, LiveTransfer(way=way, timeout_s=120), devices - 1))


async def publish_versions(tmp_path: Path, device: torch.device, live: LiveTransfer, served_on: int) -> None:
    folder = SHIPPED / "quickstart"
    command = ServerCommand(
        model=folder, python=Path(sys.executable), max_context=512, dtype="bfloat16", gpu_memory=0.2,
        devices=(str(served_on),), extra=live.server_arguments(),
        variables=live.server_environment(),
    )  # fmt: skip
    model = open_model(str(folder), home=tmp_path).model.to(device)
    config = TrainerConfig(precision="bf16", learning_rate=1e-3, minibatches=1)
    trainer = Trainer(model, algorithm=AlgorithmConfig(), config=config, max_context=512, seed=0)
    served = ServedModel(vocabulary=2048, max_context=512, dtype=torch.bfloat16, exact_trainer=False)
    publishing = Publisher(VllmConfig(), served, folder=tmp_path / "weights", live=live)
    server = VllmServer(command, log=tmp_path / "vllm.log")
    await server.start()
    client = server.client()
    try:
        for version in range(1, 4):
            report = await publishing.publish(version, Source(trainer), [client])
            print(report.metrics())
            assert [replica.failure for replica in report.replicas] == [""]
            assert not (tmp_path / "weights" / str(version)).exists(), "files were the fall-back"
            trainer.update(GROUPS, temperature=1.0)
    finally:
        await client.close()
        await server.stop()
        trainer.close()
