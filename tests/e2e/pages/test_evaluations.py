"""Reports and comparisons of evaluations in a real browser."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.builders.web.evaluation_builders import FIRST, SECOND, evaluated, scored
from tests.builders.web.page_builders import make_dataset
from tests.e2e.conftest import aside
from webapp.models import Run, Task

pytestmark = [pytest.mark.e2e]


def two_evaluations() -> tuple[Run, Run, list[Task]]:
    """Create two evaluations of the same tasks; a verifier has scored the first task of the first."""
    _, tasks = make_dataset()
    first, second = evaluated(tasks, FIRST), evaluated(tasks, SECOND)
    scored(first, tasks[0], {0: 0.9, 1: 0.8, 2: 0.2, 3: 0.1})
    return first, second, tasks


def test_gained_tasks_open_side_by_side(page: Page) -> None:
    first, second, tasks = aside(two_evaluations)
    page.set_viewport_size({"width": 1280, "height": 1000})
    page.goto(f"/evaluations/{first.pk}/eval:heldout/0/")
    page.click("text=Compare…")
    expect(page.locator("#compare-first")).to_have_value(f"{first.pk}:eval:heldout:0")
    page.select_option("#compare-second", f"{second.pk}:eval:heldout:0")
    page.click("form[aria-label='Evaluations to compare'] button")
    gained = page.locator("section[aria-labelledby=gained-title] tbody tr")
    expect(gained).to_have_count(2)
    gained.first.get_by_role("link", name="side by side").click()
    sides = page.locator(".task-sides > section")
    expect(sides).to_have_count(2)
    expect(sides.first.locator(".task-rollouts li")).to_have_count(4)
    page.wait_for_load_state()  # including style sheets
    left, right = sides.first.bounding_box(), sides.last.bounding_box()
    assert left is not None
    assert right is not None
    assert left["y"] == right["y"]
    assert right["x"] >= left["x"] + left["width"]
    sides.last.locator(".task-rollouts a").first.click()
    expect(page).to_have_url(re.compile(rf"/runs/{second.pk}/eval:heldout/0/{tasks[2].key}/0/$"))


def test_a_submission_is_checked_and_downloaded(page: Page) -> None:
    run, _, _ = aside(two_evaluations)
    page.set_viewport_size({"width": 1280, "height": 1000})
    page.goto(f"/evaluations/{run.pk}/eval:heldout/0/")
    page.click("text=Submission…")
    checks = page.locator("section[aria-labelledby=findings-title]")
    expect(checks).to_contain_text("Not checked yet")
    page.get_by_role("button", name="Check").click()
    expect(checks).to_contain_text("info.report is empty")
    page.get_by_label("Technical report").fill("https://example.org/report")
    page.get_by_label("Name", exact=True).fill("Toy agent")
    page.get_by_role("button", name="Check").click()
    expect(checks).to_contain_text("finding")
    expect(checks).not_to_contain_text("info.report is empty")
    with page.expect_download() as download:
        page.click("text=Download")
    assert download.value.suggested_filename.endswith("_Toy-agent.zip")
