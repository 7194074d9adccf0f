"""Patience with followed runs that no process performs anymore."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from engine.orchestrator.context import RunContext
from engine.orchestrator.verification import following
from engine.orchestrator.verification.following import PATIENCE_S, FollowedRuns


def test_patience_starts_at_the_first_check_without_a_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading the events of a large run may take longer than the patience."""
    clock, held = [0.0], [True]
    monkeypatch.setattr(following, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(following, "is_held", lambda _folder: held[0])
    run: Any = SimpleNamespace(run_dir=tmp_path / "v")
    runs = FollowedRuns(cast(RunContext, run), ["7"], setting="runs", phases=(), follow=True)

    def is_over(at: float, *, is_held: bool) -> bool:
        clock[0], held[0] = at, is_held
        return runs._has_changes()

    assert not is_over(0.0, is_held=True)
    assert not is_over(10 * PATIENCE_S, is_held=False)
    assert not is_over(11 * PATIENCE_S, is_held=False)
    assert not is_over(11 * PATIENCE_S + 1, is_held=True)
    assert not is_over(20 * PATIENCE_S, is_held=False)
    assert not is_over(21 * PATIENCE_S, is_held=False)
    assert is_over(21 * PATIENCE_S + 1, is_held=False)
