"""Steps of a run over its iterations: lengths, the map with its examples, thinking by purpose."""

from __future__ import annotations

import json

import pytest

from tests.builders.commands import CommandFailedError, run_command
from tests.builders.web.html_regions import inner_html
from tests.builders.web.page_builders import Yard, make_yard
from tests.builders.web.web_builders import signed_in
from webapp.core.permissions import Role
from webapp.models import Group, Iteration, Run, Scan, Trajectory
from webapp.rollouts.services import scans
from webapp.runs.contexts.step_figures import build_steps

pytestmark = pytest.mark.django_db


@pytest.fixture
def yard() -> Yard:
    yard = make_yard(iterations=2, group_size=2)
    while scans.scan_pending():
        pass
    return yard


def test_the_map_has_means_over_iterations_and_steps(yard: Yard) -> None:
    profiles = [
        {"steps": [4, 2], "thinking": [10.0, None], "generated": [20.0, 50.0]},
        {"steps": [4, 4, 1], "thinking": [30.0, 400.0, 8.0], "generated": [40.0, 10.0, 5.0]},
        {},
    ]
    for index, profile in enumerate(profiles):
        Iteration.objects.update_or_create(
            run=yard.run,
            index=index,
            defaults={"profile": profile, "policy_version": index, "started_at": yard.run.created_at},
        )
    panel = build_steps(yard.run, hidden=False)
    assert panel.grid is not None
    assert [(row.label, row.steps, row.tokens) for row in panel.grid.rows] == [
        ("0", 8, 20.0), ("1", 6, 400.0), ("2", 1, 8.0),
    ]  # fmt: skip
    assert [cell.level for row in panel.grid.rows for cell in row.cells] == ["t1", "t2", "m-1", "t5", "t1"]
    lengths, numbers = panel.charts[:2]
    assert lengths.lines[0].last == pytest.approx(205 / 9)
    assert numbers.lines[0].last == 2.25
    assert build_steps(yard.run, hidden=True).grid is None


def test_long_runs_and_rollouts_are_put_into_buckets(yard: Yard) -> None:
    profile = {"steps": [1] * 300, "thinking": [5.0] * 300, "generated": [9.0] * 300}
    Iteration.objects.bulk_create(
        Iteration(run=yard.run, index=i, profile=profile, policy_version=i, started_at=yard.run.created_at)
        for i in range(10, 400)
    )
    grid = build_steps(yard.run, hidden=False).grid
    assert grid is not None
    assert (len(grid.iterations), grid.iterations.width, grid.height) == (50, 8, 8)
    assert len(grid.rows) <= 64
    assert grid.rows[1].label == "8–15"


def test_cells_open_the_rollout_with_the_most_thinking(yard: Yard) -> None:
    client = signed_in(Role.VIEWER)
    panel = inner_html(client.get(f"/runs/{yard.run.pk}/?tab=steps").content.decode(), "run-panel")
    address = f"/runs/{yard.run.pk}/step-example/?iterations=1-1&steps=2-2"
    assert address.replace("&", "&amp;") in panel
    response = client.get(address)
    row = Trajectory.objects.filter(run=yard.run, phase="train", iteration=1, num_steps__gt=2).first()
    assert row is not None
    assert response.status_code == 302
    assert response["Location"].startswith(f"/runs/{yard.run.pk}/train/1/")
    assert response["Location"].endswith("?from=2#step-2")
    assert client.get(response["Location"]).status_code == 200
    for query in ("iterations=1-1&steps=900-900", "iterations=x&steps=1-1", ""):
        assert client.get(f"/runs/{yard.run.pk}/step-example/?{query}").status_code == 404


def test_thinking_is_summed_by_purpose_and_phase(yard: Yard) -> None:
    Scan.objects.filter(run=yard.run).update(
        purpose_steps=[2, 1, 0, 0, 0, 0], purpose_thinking=[50, 2000, 0, 0, 0, 0]
    )
    panel = build_steps(yard.run, hidden=False)
    assert [(row.name, row.training.mean) for row in panel.purposes] == [("locate", 25.0), ("edit", 2000.0)]
    assert panel.purposes[0].share == pytest.approx(2 / 3)
    assert {thinking.mean for thinking in panel.purposes[1].evaluations} <= {2000.0}
    records = signed_in(Role.VIEWER).get(f"/api/v1/runs/{yard.run.pk}/steps").json()
    assert json.loads(run_command("run", "steps", yard.run.pk)) == records
    trained = [r for r in records["purposes"] if r["phase"] == "train" and r["purpose"] == "edit"]
    scanned = Scan.objects.filter(run=yard.run, phase="train").count()
    assert sum(r["steps"] for r in trained) == scanned


def test_purposes_come_from_the_steps(yard: Yard) -> None:
    sums = {row.name: row.training.steps for row in build_steps(yard.run, hidden=False).purposes}
    assert sums["locate"] > 0
    assert sums["test"] > 0
    finished = Trajectory.objects.filter(run=yard.run, phase="train", state="finished")
    assert sum(sums.values()) == sum(finished.values_list("num_steps", flat=True))


def test_runs_without_a_repository_have_no_purposes(yard: Yard) -> None:
    Run.objects.filter(pk=yard.run.pk).update(
        config={**yard.run.config, "environment": {"type": "frozenlake"}}
    )
    page = signed_in(Role.VIEWER).get(f"/runs/{yard.run.pk}/?tab=steps").content.decode()
    assert "not applicable" in page
    assert signed_in(Role.VIEWER).get(f"/api/v1/runs/{yard.run.pk}/steps").json()["purposes"] is None


def test_one_task_is_shown_over_iterations_and_evaluations(yard: Yard) -> None:
    client, key = signed_in(Role.VIEWER), yard.tasks[0].key
    panel = inner_html(
        client.get(f"/runs/{yard.run.pk}/?tab=groups&task={key}").content.decode(), "run-panel"
    )
    assert [name in panel for name in ("Solve rate", "Steps of a rollout", "Thinking tokens")] == [True] * 3
    records = client.get(f"/api/v1/runs/{yard.run.pk}/tasks/{key}").json()
    assert json.loads(run_command("run", "task", yard.run.pk, key)) == records
    groups = Group.objects.filter(run=yard.run, task_key=key).order_by("iteration", "phase")
    assert [(r["phase"], r["iteration"], r["solved"]) for r in records] == list(
        groups.values_list("phase", "iteration", "num_solved")
    )
    ended = Trajectory.objects.filter(group=groups[0], state="finished", num_steps__gt=0)
    steps, thinking = (sum(ended.values_list(name, flat=True)) for name in ("num_steps", "thinking_tokens"))
    assert records[0]["steps"] == steps / len(ended)
    assert records[0]["thinking"] == pytest.approx(thinking / steps)
    task = client.get(f"/datasets/{yard.dataset.name}/tasks/{key}/").content.decode()
    assert f"/runs/{yard.run.pk}/?tab=groups&amp;task={key}" in task
    assert client.get(f"/api/v1/runs/{yard.run.pk}/tasks/none").status_code == 404
    with pytest.raises(CommandFailedError, match="no group of task none"):
        run_command("run", "task", yard.run.pk, "none")
