"""Submissions that search for the solution find it if nothing removes it: the attacks are effective."""

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
async def test_solution_search_succeeds_without_the_removal_of_answers(
    monkeypatch: pytest.MonkeyPatch, adversary_home: Path, adversary_row: TaskRow, name: str
) -> None:
    async def nothing(*_: object) -> None:
        pass

    monkeypatch.setattr(execution, "remove_answers", nothing)
    result = await grade(LocalBackend(adversary_home), adversary_row, find(name), "signed")
    assert result.verdict is Verdict.PASSED, result.detail
