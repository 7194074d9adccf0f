"""Patience with followed runs that no process performs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from engine.orchestrator.context import RunContext
from engine.orchestrator.verification import following
from engine.orchestrator.verification.following import PATIENCE_S, FollowedRuns


def test_patience_counts_from_the_first_look_that_finds_no_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading what a large run wrote may itself take longer than the patience."""
    clock, held = [0.0], [True]
    monkeypatch.setattr(following, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(following, "is_held", lambda _folder: held[0])
    run: Any = SimpleNamespace(run_dir=tmp_path / "v")
    runs = FollowedRuns(cast(RunContext, run), ["7"], setting="runs", phases=(), follow=True)

    def is_over(at: float, *, is_held: bool) -> bool:
        clock[0], held[0] = at, is_held
        return runs._has_news()

    assert not is_over(0.0, is_held=True)
    assert not is_over(10 * PATIENCE_S, is_held=False)
    assert not is_over(11 * PATIENCE_S, is_held=False)
    assert not is_over(11 * PATIENCE_S + 1, is_held=True)
    assert not is_over(20 * PATIENCE_S, is_held=False)
    assert not is_over(21 * PATIENCE_S, is_held=False)
    assert is_over(21 * PATIENCE_S + 1, is_held=False)
