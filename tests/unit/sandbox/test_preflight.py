"""The preflight of every backend names the programs that apply patches on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.sandbox.preflight import preflight
from tests.fakes.memory_sandbox import MemoryBackend


async def test_programs_that_apply_patches_are_required(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await preflight(MemoryBackend()) == []
    monkeypatch.setenv("PATH", str(tmp_path))
    found = await preflight(MemoryBackend())
    assert [(one.severity, one.message.partition(" is not installed")[0]) for one in found] == [
        ("error", "git"),
        ("error", "patch"),
    ]
    assert "apt-get install patch" in found[1].message
