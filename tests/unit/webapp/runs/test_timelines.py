"""Time strips and staleness: from events to pages, API and command."""

from __future__ import annotations

import json

import pytest
from django.test import Client

from tests.builders.commands import run_command
from tests.builders.web.page_builders import Yard, make_yard, timeline_of
from tests.builders.web.web_builders import make_user
from webapp.core.permissions import Role
from webapp.models import Trajectory
from webapp.runs.contexts.timeline import build_timeline

pytestmark = pytest.mark.django_db


@pytest.fixture
def viewer() -> Client:
    client = Client()
    client.force_login(make_user("vera", Role.VIEWER))
    return client


@pytest.fixture
def yard() -> Yard:
    return make_yard(group_size=4)


def address(yard: Yard, *, task: int = 1) -> str:
    return f"/runs/{yard.run.pk}/train/1/{yard.tasks[task].key}/1/"


def test_iteration_strips_link_to_the_costliest_rollouts(yard: Yard, viewer: Client) -> None:
    strips = build_timeline(yard.run.pk, {}).page.rows
    assert [strip.index for strip in strips] == [2, 1, 0]
    engines, trainer, place, sandbox, grading = strips[1].lanes
    assert [(bar.x, bar.width) for bar in engines.bars] == [(83.3, 250.0), (416.7, 333.3)]
    assert (engines.seconds, engines.share, engines.rollouts) == (7.0, 7 / 12, 1.5)
    assert (trainer.rollouts, place.bars, place.cause) == (None, (), None)
    assert sandbox.cause is not None
    assert sandbox.cause.url == address(yard)
    assert strips[1].straggler == trainer.cause
    assert grading.text == "·" * 13 + "█" * 17 + "·" * 10
    for page in (f"/runs/{yard.run.pk}/?tab=timeline", f"/runs/{yard.run.pk}/train/1/"):
        text = viewer.get(page).content.decode()
        assert text.count(f'href="{address(yard)}"') >= 8, "each bar and each row of the table is a link"
        assert "Sandbox wait" in text
    assert viewer.get(address(yard)).status_code == 200


def test_api_and_command_return_the_same_timelines(yard: Yard, viewer: Client) -> None:
    answer = viewer.get(f"/api/v1/runs/{yard.run.pk}/timeline?size=2").json()
    assert (answer["total"], [item["index"] for item in answer["items"]]) == (3, [2, 1])
    assert answer["items"][1]["timeline"] == timeline_of(yard, 1, 1)
    assert viewer.get(f"/api/v1/runs/{yard.run.pk}/timeline?size=9999&page=-1").status_code == 200
    printed = run_command("run", "timeline", yard.run.pk, "--json")
    assert json.loads(printed)["items"][:2] == answer["items"]
    printed = run_command("run", "timeline", yard.run.pk)
    lines = printed.splitlines()
    assert lines[-1] == "showing 1–3 of 3 iterations"
    assert "iteration 2: 12.00 s" in lines
    assert sum("waited longest, 6.50 s" in line for line in lines) == 6


def test_selected_batch_records_the_staleness_of_its_rollouts(yard: Yard, viewer: Client) -> None:
    key = yard.tasks[1].key
    yard.stream.add(
        "batch_selected", iteration=3, policy_version=4,
        groups=[{"iteration": 1, "task_id": key, "updates": 1, "indices": [0, 1]}],
    )  # fmt: skip
    yard.post()
    trained = Trajectory.objects.filter(trained_version=4, trained_iteration=3)
    assert sorted(trained.values_list("iteration", "task_key", "index")) == [(1, key, 0), (1, key, 1)]
    rollout = trained.get(index=1)
    assert (rollout.policy_version_min, rollout.policy_version_max) == (1, 2)
    page = viewer.get(address(yard)).content.decode()
    assert "2–3 updates" in page
    assert "trained on in iteration 3" in page
    group = viewer.get(f"/runs/{yard.run.pk}/train/1/{key}/").content.decode()
    assert group.count("2–3</span>") == 2
    assert "Staleness" not in viewer.get(f"/runs/{yard.run.pk}/train/0/{yard.tasks[0].key}/").content.decode()
    answer = viewer.get(f"/api/v1/trajectories/{rollout.pk}").json()
    assert (answer["trained_iteration"], answer["trained_version"]) == (3, 4)
