"""Charts and solve map of a run: iterations of short runs, buckets of long runs, detail of ranges."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from tests.builders.web.web_builders import make_run, make_user, signed_in
from tests.unit.webapp.runs.test_run_comparison import BEGAN, trained
from webapp.core.permissions import Role
from webapp.models import Evaluation, Group, Iteration, Run
from webapp.runs.contexts.chart_points import MOST_POINTS
from webapp.runs.contexts.runs import build_run_detail
from webapp.runs.selectors.solve_map import Cell, solve_map

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(("iterations", "bucketed"), [(MOST_POINTS, False), (MOST_POINTS + 200, True)])
def test_charts_have_a_bounded_number_of_points_up_to_the_newest(iterations: int, bucketed: bool) -> None:
    charts = build_run_detail(trained(iterations), {}, role=Role.VIEWER).charts
    x = charts["x"]
    assert isinstance(x, list)
    assert charts["bucketed"] is bucketed
    assert len(x) <= MOST_POINTS
    assert x[-1] == iterations - 1
    assert x == sorted(set(x))


def test_zoomed_range_is_returned_in_full_detail() -> None:
    run = trained(MOST_POINTS + 200)
    client = Client()
    client.force_login(make_user("eve", Role.VIEWER))
    url = reverse("run-points", args=[run.pk])
    part = client.get(url, {"from": "100", "to": "140"}).json()
    assert part["x"] == list(range(100, 141))
    assert part["columns"]["reward/mean"] == part["x"]
    assert client.get(url, {"from": "soon"}).status_code == 400
    assert client.get(reverse("run-points", args=[run.pk + 1])).status_code == 404
    assert Client().get(url).status_code == 302


def test_points_are_returned_over_rollouts_tokens_and_time() -> None:
    run, now = make_run(), timezone.now()
    Run.objects.filter(pk=run.pk).update(running_at=now)
    for index in range(3):
        metrics = {"reward/mean": float(index), "funnel/trajectories": 64.0, "tokens/trained": 1000.0}
        Iteration.objects.create(
            run=run, index=index, policy_version=0, started_at=now,
            finished_at=now + timedelta(hours=index + 1), metrics=metrics,
        )  # fmt: skip
    client, url = signed_in(Role.VIEWER), reverse("run-points", args=[run.pk])
    places = {"rollouts": [64, 128, 192], "tokens": [1000, 2000, 3000], "time": [1, 2, 3], "": [0, 1, 2]}
    for axis, x in places.items():
        part = client.get(url, {"x": axis}).json()
        assert (part["x"], part["columns"]["reward/mean"]) == (x, [0, 1, 2])
    assert client.get(url, {"x": "rollouts", "from": "100"}).json()["x"] == [128, 192]
    assert client.get(url, {"x": "moons"}).status_code == 400
    page = client.get(f"/runs/{run.pk}/?x=tokens").content.decode()
    assert re.search(r'<option value="tokens"\s+selected', page)


def test_headline_is_the_newest_evaluation_of_heldout_tasks() -> None:
    run = trained(3)
    assert build_run_detail(run, {}, role=Role.VIEWER).headline is None
    for name, iteration in (("heldout", 0), ("train", 0), ("heldout", 2)):
        Evaluation.objects.create(
            run=run, iteration=iteration, name=name, policy_version=0, num_samples=4, num_tasks=2,
            num_solved=1, solve_rate=0.25, interval_low=0.1, interval_high=0.5, finished_at=BEGAN,
        )  # fmt: skip
    headline = build_run_detail(run, {}, role=Role.VIEWER).headline
    assert headline is not None
    assert (headline.name, headline.last.evaluation.iteration) == ("heldout", 2)


def store_groups(run: Run, numbers: dict[str, dict[int, tuple[int, int]]]) -> None:
    """Store groups given as task → iteration → (solved, graded)."""
    now = timezone.now()
    Group.objects.bulk_create(
        Group(
            run=run, phase="train", iteration=iteration, task_key=key, size=8, num_finished=8,
            num_graded=graded, num_solved=solved, started_at=now,
        )
        for key, row in numbers.items()
        for iteration, (solved, graded) in row.items()
    )  # fmt: skip


def test_the_solve_map_has_all_iterations_of_a_long_run_in_buckets() -> None:
    run = make_run()
    assert solve_map(run.pk) is None
    store_groups(run, {"a": {i: (i % 2, 2) for i in range(0, 2000, 5)}, "b": {3: (0, 4), 1999: (4, 4)}})
    grid = solve_map(run.pk)
    assert grid is not None
    assert (grid.buckets.width, len(grid.buckets), grid.buckets.middle) == (32, 63, 1024)
    assert grid.buckets.range_of(0) == (0, 31)
    assert grid.buckets.range_of(62) == (1984, 1999)
    assert [task.key for task in grid.page.rows] == ["b", "a"]
    assert [(cell.bucket, cell.solved, cell.graded, cell.groups) for cell in grid.cells["b"]] == [
        (0, 0, 4, 1), (62, 4, 4, 1),
    ]  # fmt: skip
    assert sum(cell.groups for cell in grid.cells["a"]) == 400
    assert grid.cells["a"][1] == Cell(bucket=1, solved=3, graded=12, cut_short=0, groups=6, iteration=35)


def test_tasks_of_the_solve_map_are_sorted_and_paged() -> None:
    run = make_run()
    store_groups(
        run,
        {
            "up": {0: (0, 4), 9: (4, 4)}, "down": {0: (2, 4), 9: (0, 4)}, "late": {9: (1, 4)},
            "lost": {0: (0, 0), 9: (0, 0)},
        },
    )  # fmt: skip

    def keys(sort: str) -> list[str]:
        grid = solve_map(run.pk, sort=sort)
        assert grid is not None
        return [task.key for task in grid.page.rows]

    assert keys("-change") == ["up", "down", "late", "lost"]
    assert keys("change") == ["down", "up", "late", "lost"]
    assert keys("rate") == ["down", "late", "up", "lost"]
    assert keys("first") == ["down", "late", "up", "lost"]
    assert keys("-name") == ["up", "lost", "late", "down"]
    second = solve_map(run.pk, sort="name", number=9, size=3)
    assert second is not None
    assert ([task.key for task in second.page.rows], second.page.number, set(second.cells)) == (
        ["up"],
        2,
        {"up"},
    )
