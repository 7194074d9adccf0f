"""Selection of runs by keyboard, and comparison of their charts, in a real browser."""

from __future__ import annotations

import pytest
from django.utils import timezone
from playwright.sync_api import Page, expect

from tests.builders.web.web_builders import make_run
from tests.e2e.conftest import aside
from webapp.models import Iteration, Run

pytestmark = [pytest.mark.e2e]


def trained(name: str, iterations: int) -> Run:
    """Create a run with rewards."""
    run = make_run(name=name)
    now = timezone.now()
    Iteration.objects.bulk_create(
        Iteration(
            run=run, index=i, policy_version=i, started_at=now, finished_at=now,
            metrics={"reward/mean": i / iterations, "tokens/trained": 10.0, "grad/norm": 0.0},
        )
        for i in range(iterations)
    )  # fmt: skip
    return run


def test_runs_are_compared_by_keyboard(page: Page) -> None:
    first, second = aside(trained, "one", 5), aside(trained, "two", 600)
    page.goto("/runs/")
    for key in ("j", "x", "j", "x"):
        page.keyboard.press(key)
    page.get_by_role("button", name="Compare selected").press("Enter")
    page.wait_for_url(f"**/runs/compare/?runs={second.pk},{first.pk}")
    charts = page.locator("#compared-charts")
    expect(charts.locator("canvas")).to_have_count(2)
    expect(charts.locator("#chart-reward-mean .value")).to_have_text(["0.996", "0.800"])
    page.get_by_label("Smoothing").press("ArrowRight")
    page.get_by_label("log y").press("Space")
    page.get_by_label("From").fill("1")
    page.get_by_label("To").fill("3")
    page.get_by_label("To").press("Enter")
    expect(charts.locator("#chart-reward-mean .value")).to_have_text(["0.00498", "0.598"])
    view = f"?runs={second.pk},{first.pk}&smooth=0.01&logy=1&from=1&to=3"
    assert page.evaluate("location.search") == view
    page.reload()
    expect(charts.locator("#chart-reward-mean .value")).to_have_text(["0.00498", "0.598"])
    page.get_by_label("x axis").select_option("tokens")
    expect(charts.locator("#chart-reward-mean .value")).to_have_text(["0.996", "0.798"])
    expect(page.locator(".differences")).to_have_count(0)
