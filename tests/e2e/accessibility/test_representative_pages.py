"""Audit of three pages with different structures; the drills audit all pages."""

from __future__ import annotations

from playwright.sync_api import Page

from tests.builders.web.page_builders import make_yard
from tests.e2e.accessibility.audit import Walk
from tests.e2e.conftest import aside


def test_representative_pages_violate_no_guideline_and_do_not_scroll_sideways(page: Page) -> None:
    yard = aside(make_yard, iterations=2, group_size=2)
    run, key = yard.run.pk, yard.tasks[0].key
    walk = Walk(page, widths=(1440, 390))
    walk.visit("run", f"/runs/{run}/")
    walk.visit("trajectory", f"/runs/{run}/train/0/{key}/0/")
    walk.visit("form", "/runs/new/?recipe=quickstart-fine-tune")
    assert not walk.findings, "\n".join(walk.findings)
