"""Charts of one run's page: every iteration of a short run, buckets of a long one, parts in detail."""

from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse

from tests.builders.web_builders import make_user
from tests.unit.webapp.test_run_comparison import BEGAN, trained
from webapp.contexts.run.runs import MOST_POINTS, build_run_detail
from webapp.models import Evaluation
from webapp.permissions import Role

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(("iterations", "bucketed"), [(MOST_POINTS, False), (MOST_POINTS + 200, True)])
def test_a_page_has_a_bounded_number_of_points_that_end_with_the_newest(
    iterations: int, bucketed: bool
) -> None:
    charts = build_run_detail(trained(iterations), {}, role=Role.VIEWER).charts
    x = charts["x"]
    assert isinstance(x, list)
    assert charts["bucketed"] is bucketed
    assert len(x) <= MOST_POINTS
    assert x[-1] == iterations - 1
    assert x == sorted(set(x))


def test_a_part_is_asked_for_in_detail() -> None:
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


def test_the_headline_is_an_evaluation_of_tasks_that_are_not_trained_on() -> None:
    run = trained(3)
    assert build_run_detail(run, {}, role=Role.VIEWER).headline is None
    for name, iteration in (("heldout", 0), ("train", 0), ("heldout", 2)):
        Evaluation.objects.create(
            run=run, iteration=iteration, name=name, policy_version=0, num_samples=4, num_tasks=2,
            num_solved=1, solve_rate=0.25, interval_low=0.1, interval_high=0.5, finished_at=BEGAN,
        )  # fmt: skip
    found = build_run_detail(run, {}, role=Role.VIEWER).headline
    assert found is not None
    assert (found.name, found.last.evaluation.iteration) == ("heldout", 2)
