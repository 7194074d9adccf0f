"""Hostile submissions against the sandbox and the files of grading, in Docker containers.

Each runs under one of its grade rules, selected by a hash of its name.
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
from tests.integration.adversary.frame import Submission, assert_ends_right, submissions

pytestmark = one_at_a_time
FAMILIES = ("changes", "exits", "git", "output", "parsers", "patches", "resources", "theft")
CASES = [
    pytest.param(
        submission,
        submission.rules[zlib.crc32(submission.name.encode()) % len(submission.rules)],
        id=submission.name,
    )
    for family, submission in submissions()
    if family in FAMILIES
]


@pytest.fixture
async def backend(adversary_home: Path) -> AsyncIterator[DockerBackend]:
    backend = DockerBackend(DockerConfig(host=docker_host()), adversary_home)
    yield backend
    await backend.close()
    assert list(backend.ledger.entries()) == []


@pytest.mark.parametrize(("submission", "rule"), CASES)
async def test_hostile_submission_gets_an_expected_verdict_in_docker(
    backend: DockerBackend, adversary_row: TaskRow, submission: Submission, rule: str
) -> None:
    await assert_ends_right(backend, adversary_row, submission, rule)
