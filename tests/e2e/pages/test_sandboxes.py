"""The page of the sandbox pool in a real browser: live updates and actions."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.builders.sandbox_builders import clock, lease, pool
from tests.builders.web.page_builders import Yard, make_yard
from tests.e2e.conftest import aside
from webapp.models import AuditEntry
from webapp.sandboxes import services as sandboxes

pytestmark = [pytest.mark.e2e]


def busy_yard() -> Yard:
    """Create a run whose pool has data for every part of the page."""
    yard = make_yard(iterations=1, group_size=2)
    name = "train/1/boltons__iterutils-compare-3/"
    records = [lease(n, sandbox_id="sb-live" if n == 0 else f"sb-{n}", name=f"{name}{n}") for n in range(14)]
    records += [lease(14, "leased", name="grade boltons__strutils-off-2"), lease(15, "failed")]
    clocks = {
        "queue": clock(*[0.004] * 30, *[0.4] * 12, *[4.0] * 9, 31.0),
        "start": clock(*[0.03] * 40, *[0.09] * 11, 0.4),
        "exec": clock(*[0.004] * 300, *[0.02] * 120, *[0.3] * 40, 9.0, 80.0),
        "grade": clock(*[0.7] * 20, *[2.0] * 8),
    }
    for live in (2, 6, 9, 12, 14):
        yard.stream.add("pool_status", **pool(live=live, wanted=live + 3, idle=live // 3, clocks=clocks))
    yard.stream.add("sandboxes_changed", records=records)
    reason = "8 starts in a row failed; the last one: no space left on the node"
    yard.stream.add(
        "pool_status",
        **pool(
            live=14,
            wanted=17,
            max_live=16,
            clocks=clocks,
            paused_reason=reason,
            blocked={"0/12 nodes have room: insufficient memory": 3},
        ),
    )
    yard.post()
    sandboxes.record_reaping(found=[sandboxes.Reaped("local", 4, ""), sandboxes.Reaped("kubernetes", 0, "")])
    return yard


def test_pool_page_receives_live_updates_and_reaps_orphans_by_keyboard(page: Page) -> None:
    yard = aside(busy_yard)
    page.goto("/sandboxes/")
    expect(page.locator("#live-dot")).to_have_attribute("data-state", "live")
    expect(page.locator("#charts")).to_have_attribute("data-points", "6")
    expect(page.locator("#pool-head")).to_contain_text("no space left on the node")
    page.evaluate("window.loaded = 'once'")

    def report() -> None:
        yard.stream.add("sandboxes_changed", records=[lease(0, "closed"), lease(77)])
        yard.stream.add("pool_status", **pool(live=3, wanted=3, images=[], paused_reason=""))
        yard.post()

    aside(report)
    expect(page.locator("#charts")).to_have_attribute("data-points", "7")
    expect(page.locator("#pool-head")).not_to_contain_text("no space left")
    expect(page.locator(f"#sandbox-{yard.run.pk}-ls-0077")).to_be_visible()
    expect(page.locator(f"#sandbox-{yard.run.pk}-ls-0000")).to_have_count(0)
    expect(page.locator("#pool-images")).to_have_count(0)
    assert page.evaluate("window.loaded") == "once", "the page was never loaded again"
    page.locator("#chart-sandboxes button").click()
    expect(page.locator("#chart-dialog .uplot")).to_be_visible()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Reap orphans now").focus()
    page.keyboard.press("Enter")
    expect(page.locator(".messages")).to_contain_text("A worker was asked to reap")
    assert aside(AuditEntry.objects.filter(action="sandboxes.reap").count) == 1
