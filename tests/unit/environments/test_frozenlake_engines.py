"""Evaluations that sample with an attached server, a fake over the built-in sampler."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
from pydantic import SecretStr

from engine.config.recipes import resolve
from engine.inference.endpoint import keys
from engine.inference.endpoint.keys import Endpoint
from engine.inference.vllm.servers.server import VllmServer
from engine.orchestrator.policies.engines import model_folder
from tests.fakes.vllm_server import FakeCommand
from tests.unit.environments.lake_builders import SMALL, of_type, perform


def test_an_evaluation_attaches_to_a_server_with_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_num_threads(1)
    home = tmp_path / "home"
    folder = model_folder("fresh:frozenlake", tmp_path / "model", home=home, dtype=torch.float32)
    server = VllmServer(FakeCommand(options=("--model", str(folder))), log=tmp_path / "server.log")
    shared = ("environment.", "rollout.")
    settings = {name: value for name, value in SMALL.items() if name.startswith(shared)}
    attach = {"policy.checkpoint": str(folder), "policy.engine": "vllm", "policy.vllm.addresses": ["lab"]}
    config = resolve("frozenlake-evaluate", {**settings, **attach, "rollout.group_size": 1})
    try:
        asyncio.run(server.start())
        lab = Endpoint(address=f"{server.address}/v1", key=SecretStr(server.api_key))
        monkeypatch.setitem(keys._named, "lab", lab)
        events = perform(home, "attached", config)
    finally:
        asyncio.run(server.stop())
    (evaluated,) = of_type(events, "evaluation_finished")
    assert evaluated["num_samples"] == 3
    files = [path for path in (home / "runs" / "attached").rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if server.api_key.encode() in path.read_bytes()]
