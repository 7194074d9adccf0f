"""A system-state task that is graded in the agent's own Docker container."""

from __future__ import annotations

from pathlib import Path

from tests.builders.own_box_builders import assert_state_counts, opened, state_task
from tests.docker_daemon import one_at_a_time

pytestmark = one_at_a_time


async def test_grading_in_docker_sees_changes_outside_of_the_workdir(tmp_path: Path) -> None:
    row = state_task(tmp_path)
    async with opened("docker", tmp_path) as backend:
        await assert_state_counts(backend, row)
