from __future__ import annotations

from dataclasses import replace

import pytest

from webapp.rollouts.contexts import highlighting
from webapp.rollouts.contexts.diffs import code_lines
from webapp.rollouts.contexts.highlighting import highlighted


def test_slow_highlighting_falls_back_to_plain_text_and_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(highlighting, "_resumes_at", 0.0)
    monkeypatch.setattr(highlighting, "PAUSE_S", 3_600.0)
    highlighting._cached.cache_clear()
    blank = [" "] * 29_000
    assert highlighted(["x = 1 # first"], "a.py")
    monkeypatch.setattr(highlighting, "LIMITS", replace(highlighting.LIMITS, cpu_s=0.1))
    assert code_lines(blank, "a.py") == blank
    assert highlighted(["x = 1 # second"], "a.py") is None
    assert highlighted(["x = 1 # first"], "a.py"), "known already"
    monkeypatch.undo()
    monkeypatch.setattr(highlighting, "_resumes_at", 0.0)
    assert highlighted(["x = 1 # second"], "a.py")


@pytest.mark.parametrize("path", ["a.ahk", "a.ezt", "a.feature", "a.n", "a", "py"])
def test_lexers_of_unsupported_languages_are_not_used(path: str) -> None:
    assert highlighted(["x = 1"], path) is None


def test_highlighting_ignores_trailing_and_rejects_inner_carriage_returns() -> None:
    assert code_lines(["x = 1\ry = 2"], "a.py") == code_lines(["x = 1\ry = 2"], "a.txt")
    assert highlighted(["x = 1\r", "y = 2\r"], "a.py") == highlighted(["x = 1", "y = 2"], "a.py")
