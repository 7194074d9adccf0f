"""Group page: failed steps, equal patches."""

from __future__ import annotations

import re

import pytest

from tests.builders.web.page_builders import Yard, make_yard
from tests.builders.web.web_builders import signed_in
from webapp.core.permissions import Role

pytestmark = pytest.mark.django_db


def group_address(yard: Yard) -> str:
    return f"/runs/{yard.run.pk}/train/0/{yard.tasks[0].key}/"


def test_failed_steps_are_marked_on_the_pages_of_group_and_trajectory() -> None:
    yard = make_yard(iterations=1, group_size=2)
    ref = yard.ref(0, 0, 9)
    yard.stream.add("trajectory_started", ref=ref, sandbox_id="s")
    yard.stream.step(ref, 0, error="no such file")
    yard.stream.step(ref, 1, tool="execute_bash", arguments={"command": "false"}, exit_code=2)
    yard.stream.step(ref, 2, tool="execute_bash", arguments={"command": "true"}, exit_code=0)
    yard.post()
    viewer = signed_in(Role.VIEWER)
    trajectory = viewer.get(f"{group_address(yard)}9/").content.decode()
    marked = re.findall(r'<li data-key="strip-(\d)">.*?(?:aria-label="([^"]*)"|</li>)', trajectory)
    assert marked == [("0", "error"), ("1", "exit 2"), ("2", "")]
    group = viewer.get(group_address(yard)).content.decode()
    cells = re.findall(r'/9/#step-(\d)"\s+title="([^"]*)"', group)
    assert [(index, title.rpartition(", ")[0]) for index, title in cells] == [
        ("0", "view (file_editor), error"),
        ("1", "command (execute_bash), exit 2"),
        ("2", "command (execute_bash)"),
    ]


def test_equal_patches_are_shown_once_with_their_rollouts() -> None:
    yard = make_yard(iterations=1, group_size=3)
    yard.stream.trajectory(yard.ref(0, 0, 3), finish=False)
    yard.stream.trajectory(yard.ref(0, 0, 5))
    yard.post()
    page = signed_in(Role.VIEWER).get(group_address(yard))
    patches = {patch.label: (patch.verdicts, patch.diff) for patch in page.context["patches"]}
    assert list(patches) == ["rollout 5", "rollouts 0–2"], "the running rollout 3 has no patch yet"
    assert patches["rollouts 0–2"][0] == ("failed",)
    assert page.content.decode().count('<div class="diff">') == 2
