"""Every submission under every grade rule that it is for, on the local backend: it ends as it must.

``make test`` tries some of each family under one rule each, ``make test-adversary`` all the others.
"""

from __future__ import annotations

import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.sandbox.local.backend import LocalBackend
from engine.types import TaskRow, Verdict
from tests.integration.adversary.frame import EVERY, FAMILIES, Submission, grade, submissions

_HONEST = 24
_HOSTILE_OF_A_FAMILY = 8


def _representatives() -> Iterator[tuple[str, str]]:
    """Yield some submissions of each family with one of their rules each.

    They are spread over the family's kinds, which lie beside each other; those with the same rules take them
    in turn.
    """
    turns: Counter[tuple[str, ...]] = Counter()
    by_family: defaultdict[str, list[Submission]] = defaultdict(list)
    for family, submission in submissions():
        by_family[family].append(submission)
    for family, found in by_family.items():
        wanted = min(len(found), _HONEST if family == "honest" else _HOSTILE_OF_A_FAMILY)
        for number in range(wanted):
            submission = found[number * len(found) // wanted]
            yield submission.name, submission.rules[turns[submission.rules] % len(submission.rules)]
            turns[submission.rules] += 1


REPRESENTATIVES = frozenset(_representatives())
CASES = [
    pytest.param(
        submission,
        rule,
        id=f"{family}-{submission.name}-{rule}".replace(" ", "_"),
        marks=() if (submission.name, rule) in REPRESENTATIVES else pytest.mark.adversary,
    )
    for family, submission in submissions()
    for rule in submission.rules
]
HOSTILE = frozenset(submission.name for family, submission in submissions() if family != "honest")


def test_names_are_unique_and_no_hostile_submission_may_pass() -> None:
    found = list(submissions())
    assert [name for name, count in Counter(one.name for _, one in found).items() if count > 1] == []
    assert [one.name for family, one in found if family != "honest" and Verdict.PASSED in one.ends] == []
    assert {family for family, _ in found} == set(FAMILIES)


def test_every_rule_is_tried_with_hostile_submissions_of_several_families() -> None:
    tried = {
        (rule, family)
        for family, submission in submissions()
        for rule in submission.rules
        if submission.name in HOSTILE and (submission.name, rule) in REPRESENTATIVES
    }
    families = Counter(rule for rule, _ in tried)
    assert set(families) == set(EVERY)
    assert min(families.values()) > 1, families
    assert sum(name in HOSTILE for name, _ in REPRESENTATIVES) >= 120


@pytest.mark.parametrize(("submission", "rule"), CASES)
async def test_submission(
    adversary_home: Path, adversary_row: TaskRow, submission: Submission, rule: str
) -> None:
    if missing := [tool for tool in submission.tools if shutil.which(tool) is None]:
        pytest.skip(f"not on this machine: {', '.join(missing)}")
    result = await grade(LocalBackend(adversary_home), adversary_row, submission, rule)
    assert result.verdict in submission.ends, f"{result.verdict}: {result.detail}\n{result.log[-3000:]}"
    assert submission.name not in HOSTILE or not result.reward, f"it got {result.reward}: {result.detail}"
