"""Submissions that go for the sandbox or for what grading leaves in it, in Docker containers.

Each submission is tried under one of its rules, which its name decides. ``make test`` tries those in
``_REPRESENTATIVES`` here, and all on the local backend; ``make test-adversary`` tries the others. To try
another family here, add it to ``_REPRESENTATIVES``.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.config.sandbox import DockerConfig
from engine.sandbox.docker.backend import DockerBackend
from engine.types import TaskRow
from tests.docker_daemon import docker_host, one_at_a_time
from tests.integration.adversary.frame import EVERY, Submission, grade, submissions

pytestmark = one_at_a_time

_REPRESENTATIVES = {
    "output": {"daemon", "reports of its own and exit"},
    "exits": {"atexit where the script ignores a test", "pytest.exit"},
    "files": {"installed runner", "tests as a link"},
    "reports": {"altered reports", "stolen key"},
    "theft": {"everything killed", "the parent's memory"},
    "changes": {"puts a link in place of its tests", "writes a reward and stops the verifier"},
    "resources": {"a full disk", "all memory", "all processes"},
    "git": {"git show of a tag", "all objects of an intact image"},
    "parsers": {"rewritten parser", "log in the way"},
}
"""Names of submissions by family."""
CASES = [
    (family, submission, submission.rules[zlib.crc32(submission.name.encode()) % len(submission.rules)])
    for family, submission in submissions()
    if family in _REPRESENTATIVES
]


@pytest.fixture
async def backend(adversary_home: Path) -> AsyncIterator[DockerBackend]:
    backend = DockerBackend(DockerConfig(host=docker_host()), adversary_home)
    yield backend
    await backend.close()
    assert list(backend.ledger.entries()) == []


def test_representatives_exist_and_every_rule_is_tried_with_one() -> None:
    chosen = [case for case in CASES if case[1].name in _REPRESENTATIVES[case[0]]]
    assert len(chosen) == sum(map(len, _REPRESENTATIVES.values()))
    assert {rule for *_, rule in chosen} == set(EVERY)


@pytest.mark.parametrize(
    ("submission", "rule"),
    [
        pytest.param(
            submission,
            rule,
            id=submission.name,
            marks=() if submission.name in _REPRESENTATIVES[family] else pytest.mark.adversary,
        )
        for family, submission, rule in CASES
    ],
)
async def test_submission_in_docker(
    backend: DockerBackend, adversary_row: TaskRow, submission: Submission, rule: str
) -> None:
    result = await grade(backend, adversary_row, submission, rule)
    assert result.verdict in submission.ends, f"{result.verdict}: {result.detail}\n{result.log[-3000:]}"
