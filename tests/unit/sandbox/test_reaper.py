"""Reaper of all backends: it calls each backend once, concurrently and with a time limit."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from engine.config.sandbox import SandboxConfig
from engine.sandbox import __main__ as command
from engine.sandbox import reaper
from engine.sandbox.reaper import Reaped, reap_all
from tests.fakes.memory_sandbox import MemoryBackend


class ReapableBackend(MemoryBackend):
    """Backend that reaps three orphans, fails or never returns, depending on its kind."""

    asked: list[tuple[str, str | None]] = []
    closed: list[str] = []

    def __init__(self, config: SandboxConfig) -> None:
        super().__init__()
        self.kind = config.backend

    async def reap(self, *, run_id: str | None = None) -> int:
        self.asked.append((self.kind, run_id))
        if self.kind == "docker":
            raise ConnectionError("no daemon\nat the socket")
        if self.kind == "kubernetes":
            await asyncio.sleep(3600)
        return 3

    async def close(self) -> None:
        self.closed.append(self.kind)


@pytest.fixture(autouse=True)
def reapable_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaper, "make_backend", lambda config, _home: ReapableBackend(config))
    ReapableBackend.asked, ReapableBackend.closed = [], []


def config(backend: str, **changes: Any) -> SandboxConfig:
    return SandboxConfig.model_validate({"backend": backend, **changes})


async def test_failing_backends_do_not_block_the_others(tmp_path: Path) -> None:
    configs = [config(name) for name in ("local", "docker", "kubernetes")]
    results = await reap_all(configs, tmp_path, run_id="7", timeout_s=0.05)
    assert results == [
        Reaped(backend="local", removed=3),
        Reaped(backend="docker", error="no daemon at the socket"),
        Reaped(backend="kubernetes", error="no answer within 0.05 s"),
    ]
    assert sorted(ReapableBackend.closed) == ["docker", "kubernetes", "local"]
    assert {run for _, run in ReapableBackend.asked} == {"7"}


async def test_configs_of_the_same_backend_reap_it_once(tmp_path: Path) -> None:
    results = await reap_all([config("local"), config("local", max_live=3)], tmp_path)
    assert [reaped.removed for reaped in results] == [3]


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["engine.sandbox", *arguments])
    monkeypatch.setattr(reaper, "TIMEOUT_S", 0.05)
    return command.main()


def test_reap_command_reports_results_and_errors(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps([config(name).model_dump() for name in ("local", "docker")]))
    arguments = ["--home", str(tmp_path), "reap", "--config", str(settings), "--run", "9"]
    assert run(monkeypatch, *arguments, "--backend", "all", "--json") == 0
    assert json.loads(capsys.readouterr().out) == [
        {"backend": "local", "removed": 3, "error": ""},
        {"backend": "docker", "removed": 0, "error": "no daemon at the socket"},
    ]
    assert run(monkeypatch, *arguments, "--backend", "docker") == 1, "what was asked for by name must work"
    output = capsys.readouterr()
    assert (output.out, output.err) == ("0 removed\n", "docker: no daemon at the socket\n")
    assert run(monkeypatch, "reap") == 0
    assert ReapableBackend.asked[-1] == ("local", None)
    settings.write_text("{}")
    assert run(monkeypatch, *arguments) == 1
    assert "--config" in capsys.readouterr().err
