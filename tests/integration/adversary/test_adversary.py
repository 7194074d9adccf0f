"""Every submission under every grade rule that it is for, on the local backend: it ends as it must."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from engine.sandbox.local.backend import LocalBackend
from engine.types import TaskRow, Verdict
from tests.integration.adversary.frame import FAMILIES, Submission, grade, submissions

CASES = [
    pytest.param(submission, rule, id=f"{family}-{submission.name}-{rule}".replace(" ", "_"))
    for family, submission in submissions()
    for rule in submission.rules
]
HOSTILE = frozenset(submission.name for family, submission in submissions() if family != "honest")


def test_names_are_unique_and_no_hostile_submission_may_pass() -> None:
    found = list(submissions())
    assert [name for name, count in Counter(one.name for _, one in found).items() if count > 1] == []
    assert [one.name for family, one in found if family != "honest" and Verdict.PASSED in one.ends] == []
    assert {family for family, _ in found} == set(FAMILIES)


@pytest.mark.parametrize(("submission", "rule"), CASES)
async def test_submission(
    adversary_home: Path, adversary_row: TaskRow, submission: Submission, rule: str
) -> None:
    result = await grade(LocalBackend(adversary_home), adversary_row, submission, rule)
    assert result.verdict in submission.ends, f"{result.verdict}: {result.detail}\n{result.log[-3000:]}"
    assert submission.name not in HOSTILE or not result.reward, f"it got {result.reward}: {result.detail}"
