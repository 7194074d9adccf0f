"""Submissions that go for the sandbox or for what grading leaves in it, in Docker containers.

These families are there whole, each submission under one of its rules: the rules take turns. To try another
family here, name it in ``_FAMILIES``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.config.sandbox import DockerConfig
from engine.sandbox.docker.backend import DockerBackend
from engine.types import TaskRow
from tests.docker_daemon import docker_host, one_at_a_time
from tests.integration.adversary.frame import EVERY, Submission, grade, submissions

pytestmark = one_at_a_time

_FAMILIES = frozenset(
    {"output", "exits", "files", "reports", "theft", "changes", "resources", "git", "parsers"}
)
CASES = [
    pytest.param(submission, submission.rules[number % len(submission.rules)], id=submission.name)
    for number, (family, submission) in enumerate(submissions())
    if family in _FAMILIES
]


@pytest.fixture
async def backend(adversary_home: Path) -> AsyncIterator[DockerBackend]:
    backend = DockerBackend(DockerConfig(host=docker_host()), adversary_home)
    yield backend
    await backend.close()
    assert list(backend.ledger.entries()) == []


def test_every_rule_is_tried() -> None:
    assert {str(case.values[1]) for case in CASES} == set(EVERY)


@pytest.mark.parametrize(("submission", "rule"), CASES)
async def test_submission_in_docker(
    backend: DockerBackend, adversary_row: TaskRow, submission: Submission, rule: str
) -> None:
    result = await grade(backend, adversary_row, submission, rule)
    assert result.verdict in submission.ends, f"{result.verdict}: {result.detail}\n{result.log[-3000:]}"
