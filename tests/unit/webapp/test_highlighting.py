from __future__ import annotations

from dataclasses import replace

import pytest

from webapp.rollouts.contexts import highlighting
from webapp.rollouts.contexts.diffs import code_lines
from webapp.rollouts.contexts.highlighting import highlighted


def test_code_that_takes_a_lexer_too_long_is_plain_and_so_is_what_follows_for_a_while(
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
def test_lexers_of_other_languages_are_not_used(path: str) -> None:
    assert highlighted(["x = 1"], path) is None


def test_lines_that_end_otherwise_are_plain() -> None:
    assert code_lines(["x = 1\ry = 2"], "a.py") == code_lines(["x = 1\ry = 2"], "a.txt")
    assert highlighted(["x = 1\r", "y = 2\r"], "a.py") == highlighted(["x = 1", "y = 2"], "a.py")
