"""Submissions that look for the solution do find it where nothing removes it: they are worth something."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.grading import execution
from engine.sandbox.local.backend import LocalBackend
from engine.types import TaskRow, Verdict
from tests.integration.adversary.frame import find, grade


@pytest.mark.parametrize(
    "name", ["git show of a tag", "history and files at once", "HEAD of an intact image", "reads fix.patch"]
)
async def test_the_solution_is_there_to_be_found(
    monkeypatch: pytest.MonkeyPatch, adversary_home: Path, adversary_row: TaskRow, name: str
) -> None:
    async def nothing(*_: object) -> None:
        pass

    monkeypatch.setattr(execution, "remove_answers", nothing)
    result = await grade(LocalBackend(adversary_home), adversary_row, find(name), "signed")
    assert result.verdict is Verdict.PASSED, result.detail
