"""A task about the state of a system, graded in the Docker container in which the agent worked."""

from __future__ import annotations

from pathlib import Path

from tests.builders.own_box_builders import assert_state_counts, opened, state_task
from tests.docker_daemon import one_at_a_time

pytestmark = one_at_a_time


async def test_changes_outside_of_the_workdir_count(tmp_path: Path) -> None:
    row = state_task(tmp_path)
    async with opened("docker", tmp_path) as backend:
        await assert_state_counts(backend, row)
