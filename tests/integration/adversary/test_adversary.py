"""Expected verdicts of each family's first submission, on the local backend."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from engine.sandbox.local.backend import LocalBackend
from engine.types import TaskRow, Verdict
from tests.integration.adversary.frame import EVERY, Submission, assert_ends_right, submissions

FIRST = dict(reversed([*submissions()]))
HONEST = ("honest", "projects")


def test_submission_names_are_unique_and_hostile_ones_never_expect_passed() -> None:
    names = Counter(submission.name for _, submission in submissions())
    assert max(names.values()) == 1, names.most_common(3)
    hostile = [submission for family, submission in submissions() if family not in HONEST]
    assert [submission.name for submission in hostile if Verdict.PASSED in submission.ends] == []
    assert {submission.rules[0] for submission in FIRST.values()} == set(EVERY)


@pytest.mark.parametrize("submission", FIRST.values(), ids=FIRST)
async def test_submission_grade(adversary_home: Path, adversary_row: TaskRow, submission: Submission) -> None:
    await assert_ends_right(LocalBackend(adversary_home), adversary_row, submission, submission.rules[0])
