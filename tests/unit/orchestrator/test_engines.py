"""Devices and model folders of a run's engines."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from pydantic import SecretStr

from engine.config.policies import VllmConfig
from engine.errors import CheckpointError, ConfigError
from engine.inference.endpoint import keys
from engine.inference.endpoint.keys import VLLM_KEY, Endpoint
from engine.models.loader import open_model
from engine.orchestrator.policies.engines import attached_servers, engine_devices, model_folder


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that there are four GPUs."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)


@pytest.mark.usefixtures("gpus")
def test_servers_get_the_devices_after_those_of_the_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine_devices(VllmConfig(replicas=3), first=1) == [("1",), ("2",), ("3",)]
    assert engine_devices(VllmConfig(tensor_parallel=2), first=2) == [("2", "3")]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,GPU-a,7")
    assert engine_devices(VllmConfig(replicas=2), first=1) == [("5",), ("GPU-a",)]
    with pytest.raises(ConfigError, match="needs 4 CUDA devices after the trainer's 1, but there are 4"):
        engine_devices(VllmConfig(replicas=2, tensor_parallel=2), first=1)


def test_servers_run_on_the_cpu_without_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert engine_devices(VllmConfig(replicas=2, tensor_parallel=8), first=0) == [(), ()]


def test_model_folder_returns_shipped_or_written_folders(tmp_path: Path) -> None:
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


def test_attached_servers_are_given_by_name_or_address(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Endpoint(address="http://lab.test:8000/v1/", key=SecretStr("key-of-the-lab"))
    monkeypatch.setattr(keys, "_named", {"lab": lab})
    monkeypatch.setattr(keys, "_keys", {VLLM_KEY: SecretStr("key-of-the-shell")})
    servers = attached_servers(VllmConfig(addresses=("lab", "http://other.test:8000")))
    assert [(server.address, server.key.get_secret_value()) for server in servers] == [
        ("http://lab.test:8000", "key-of-the-lab"),
        ("http://other.test:8000", "key-of-the-shell"),
    ]
    with pytest.raises(ConfigError, match="endpoint 'home' is unknown"):
        attached_servers(VllmConfig(addresses=("home",)))
    with pytest.raises(ConfigError, match="server of 'http://lab.test:8000' twice"):
        attached_servers(VllmConfig(addresses=("lab", "http://lab.test:8000")))
