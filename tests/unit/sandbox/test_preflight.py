"""Preflight of every backend: programs that apply patches on this machine."""

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
    findings = await preflight(MemoryBackend())
    assert [(f.severity, f.message.partition(" is not installed")[0]) for f in findings] == [
        ("error", "git"),
        ("error", "patch"),
    ]
    assert "apt-get install patch" in findings[1].message
