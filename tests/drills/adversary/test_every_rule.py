"""Every submission, hostile or honest, under each of its grade rules, on the local backend."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.sandbox.local.backend import LocalBackend
from engine.types import TaskRow
from tests.integration.adversary.frame import Submission, assert_ends_right, submissions

CASES = [
    pytest.param(submission, rule, id=f"{family}-{submission.name}-{rule}".replace(" ", "_"))
    for family, submission in submissions()
    for rule in submission.rules
]


@pytest.mark.parametrize(("submission", "rule"), CASES)
async def test_submission_gets_an_expected_verdict_under_every_rule(
    adversary_home: Path, adversary_row: TaskRow, submission: Submission, rule: str
) -> None:
    await assert_ends_right(LocalBackend(adversary_home), adversary_row, submission, rule)
