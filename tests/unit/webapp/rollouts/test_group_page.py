"""Group page and the page of two rollouts: failed steps, equal patches, aligned steps."""

from __future__ import annotations

import re

import pytest

from tests.builders.commands import run_command
from tests.builders.web.page_builders import Yard, make_yard
from tests.builders.web.web_builders import signed_in
from webapp.core.permissions import Role
from webapp.models import Trajectory

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


def add_rollout(yard: Yard, index: int, commands: str, reward: float) -> Trajectory:
    """Ingest a rollout with one command per letter."""
    ref = yard.ref(0, 3, index)
    yard.stream.add("trajectory_started", ref=ref, sandbox_id="s")
    for number, command in enumerate(commands):
        yard.stream.step(
            ref, number, tool="execute_bash", arguments={"command": f"run {command}"},
            observation=f"{command} printed by {index}", exit_code=0,
        )  # fmt: skip
    yard.stream.finished(ref, steps=len(commands), reward=reward)
    yard.post()
    return Trajectory.objects.get(run=yard.run, task_key=yard.tasks[3].key, index=index)


def test_two_rollouts_are_aligned_by_their_actions() -> None:
    yard = make_yard(iterations=1, group_size=2)
    failed = add_rollout(yard, 0, "abxyt", 0.0)
    passed = add_rollout(yard, 1, "abzt", 1.0)
    viewer = signed_in(Role.VIEWER)
    group = viewer.get(f"/runs/{yard.run.pk}/train/0/{yard.tasks[3].key}/")
    address = group.context["pair_url"]
    assert address == f"/trajectories/compare/?left={passed.pk}&right={failed.pk}"
    assert group.content.decode().count(address.replace("&", "&amp;")) == 2, "button and first difference"
    page = viewer.get(address)
    rows = [
        (row.left and row.left.row.index, row.right and row.right.row.index) for row in page.context["rows"]
    ]
    assert rows == [(0, 0), (1, 1), (2, 2), (None, 3), (3, 4)]
    assert [row.is_equal for row in page.context["rows"]] == [True, True, False, False, True]
    text = page.content.decode()
    assert (page.context["first_difference"], page.context["num_equal"]) == (2, 3)
    assert ("b printed by 1" in text, "z printed by 1" in text, "t printed by 0" in text) == (
        False,
        True,
        True,
    )
    text = viewer.get(f"{address}&from=0").content.decode()
    assert "a printed by 0" in text
    answer = viewer.get(f"/api/v1/trajectories/compare?left={passed.pk}&right={failed.pk}").json()
    assert (answer["first_difference"], answer["num_equal"]) == (2, 3)
    assert [row["left"] and row["left"]["index"] for row in answer["rows"]] == [0, 1, 2, None, 3]


def test_page_of_two_rollouts_refuses_missing_ones_and_bounds_long_ones() -> None:
    yard = make_yard(iterations=1, group_size=2)
    one, other = add_rollout(yard, 0, "a" * 1_100, 0.0), add_rollout(yard, 1, "b" * 40, 0.0)
    viewer = signed_in(Role.VIEWER)
    for query in ("", f"?left={one.pk}", f"?left={one.pk}&right=99999999", f"?left={one.pk}&right=x"):
        assert viewer.get(f"/trajectories/compare/{query}").status_code == 404, query
    page = viewer.get(f"/trajectories/compare/?left={one.pk}&right={other.pk}&from=99999")
    assert (len(page.context["rows"]), page.context["num_rows"]) == (1_000, 1_100)
    assert "showing 1\u202f000 of 1\u202f100 rows" in page.content.decode()
    assert not any(row.left.view for row in page.context["rows"])
    assert viewer.get(f"/trajectories/compare/?left={one.pk}&right={one.pk}").status_code == 200


def test_command_prints_aligned_steps() -> None:
    yard = make_yard(iterations=1, group_size=2)
    one, other = add_rollout(yard, 0, "ab", 0.0), add_rollout(yard, 1, "az", 1.0)
    lines = run_command("trajectories", "compare", one.pk, other.pk).splitlines()
    assert [line[:1] for line in lines] == ["=", "≠", "1"]
    assert lines[1].split() == ["≠", "1", "command", "run", "b", "1", "command", "run", "z"]
    assert lines[2] == "1 of 2 actions equal"
