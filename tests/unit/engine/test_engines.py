"""Devices, ways of transfer and model folders of a run's engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config.policies import VllmConfig
from engine.errors import CheckpointError, ConfigError
from engine.models.opening import open_model
from engine.orchestrator import engines
from engine.orchestrator.engines import engine_devices, live_transfer, model_folder


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that there are four GPUs."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)


@pytest.mark.usefixtures("gpus")
def test_servers_have_the_devices_after_the_trainers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine_devices(VllmConfig(replicas=3), first=1) == [("1",), ("2",), ("3",)]
    assert engine_devices(VllmConfig(tensor_parallel=2), first=2) == [("2", "3")]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,GPU-a,7")
    assert engine_devices(VllmConfig(replicas=2), first=1) == [("5",), ("GPU-a",)]
    with pytest.raises(ConfigError, match="needs 4 CUDA devices after the trainer's 1, but there are 4"):
        engine_devices(VllmConfig(replicas=2, tensor_parallel=2), first=1)


def test_without_gpus_servers_compute_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert engine_devices(VllmConfig(replicas=2, tensor_parallel=8), first=0) == [(), ()]


@pytest.mark.parametrize(
    ("settings", "on_gpu", "has_adapters", "has_vllm", "way"),
    [
        ({}, True, False, True, "nccl"),
        ({}, True, False, False, None),
        ({}, True, True, True, None),
        ({}, False, False, True, None),
        ({"addresses": ("http://h:1",)}, True, False, True, None),
        ({"transfer": "disk"}, True, False, True, None),
        ({"transfer": "ipc"}, True, False, True, "ipc"),
        ({"transfer": "nccl", "addresses": ("http://h:1",)}, True, False, True, "nccl"),
        ({"transfer": "nccl"}, False, False, True, ConfigError),
        ({"transfer": "ipc"}, True, True, True, ConfigError),
        ({"transfer": "ipc"}, True, False, False, ConfigError),
    ],
)
def test_the_way_of_weights(
    settings: dict[str, Any],
    on_gpu: bool,
    has_adapters: bool,
    has_vllm: bool,
    way: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engines, "can_import_vllm", lambda: has_vllm)
    config = VllmConfig(**settings)
    if way is ConfigError:
        with pytest.raises(ConfigError, match="policy.vllm.transfer"):
            live_transfer(config, on_gpu=on_gpu, has_adapters=has_adapters)
        return
    found = live_transfer(config, on_gpu=on_gpu, has_adapters=has_adapters)
    assert (found and found.way) == way


def test_folders_that_vllm_opens(tmp_path: Path) -> None:
    out = tmp_path / "model"
    shipped = model_folder("builtin:quickstart", out, home=tmp_path, dtype=torch.float32)
    assert shipped.name == "quickstart"
    assert not out.exists()
    assert model_folder("fresh:frozenlake", out, home=tmp_path, dtype=torch.float32) == out
    assert (out / "config.json").exists()
    assert (out / "model.safetensors").exists()
    open_model(str(out), home=tmp_path)
    with pytest.raises(CheckpointError):
        model_folder(str(tmp_path / "nothing"), out, home=tmp_path, dtype=torch.float32)
