"""Operation of pages by keyboard alone: Tab reaches every control, and the focus is never lost."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.builders.web.page_builders import make_yard
from tests.e2e.conftest import aside
from webapp.rollouts.services import passages

pytestmark = [pytest.mark.e2e]
FOCUSED = """() => {
  const node = document.activeElement;
  const name = node.getAttribute("aria-label") || node.labels?.[0]?.textContent || node.textContent;
  return [name, getComputedStyle(node).outlineStyle];
}"""
MOST_STOPS = 120


def reach(page: Page, name: str) -> None:
    """Press Tab until the control with this name has the focus and a visible focus ring."""
    for _ in range(MOST_STOPS):
        page.keyboard.press("Tab")
        label, ring = page.evaluate(FOCUSED)
        if " ".join(label.split()) == name:
            assert ring == "solid", f"{name} does not show the focus"
            return
    raise AssertionError(f"Tab does not lead to {name}")


def press(page: Page, name: str, key: str = "Enter") -> None:
    reach(page, name)
    page.keyboard.press(key)


def test_runs_can_be_created_and_edited_by_keyboard(page: Page) -> None:
    aside(make_yard, iterations=1, group_size=2)
    page.goto("/runs/")
    press(page, "Skip to content")
    press(page, "New run")
    page.wait_for_url("**/runs/new/")
    page.locator(".recipes a", has_text="quickstart").first.focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/runs/new/?recipe=quickstart*")
    reach(page, "name")
    page.keyboard.press("Control+a")
    page.keyboard.type("by keyboard")
    press(page, "Save as draft")
    expect(page.locator("h1")).to_contain_text("by keyboard")
    page.wait_for_load_state()  # the page's scripts open the dialog
    press(page, "Edit")
    expect(page.locator("#edit-name")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Edit", exact=True)).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("End")
    page.keyboard.type(", renamed")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_contain_text("by keyboard, renamed")


def test_failed_trajectories_can_be_found_by_keyboard(page: Page) -> None:
    aside(make_yard, iterations=1, group_size=2)
    while aside(passages.index_pending):
        pass
    page.goto("/")
    page.keyboard.press("/")
    page.keyboard.type("comparison")
    page.keyboard.press("Enter")
    page.wait_for_url("**/trajectories/?q=comparison")
    reach(page, "Verdict")
    page.keyboard.type("failed")
    press(page, "Search")
    page.wait_for_url("**verdict=failed**")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.locator("#trajectory-outcome .chip").first).to_contain_text("failed")


def test_menus_tabs_and_dialogs_keep_the_focus(page: Page) -> None:
    yard = aside(make_yard, iterations=2, group_size=2)
    page.goto(f"/runs/{yard.run.pk}/")
    press(page, "Account")
    press(page, "Sessions", "Escape")
    expect(page.locator(".user > summary")).to_be_focused()
    expect(page.locator(".user .menu")).to_be_hidden()
    press(page, "Enlarge Mean reward")
    press(page, "Values")
    expect(page.locator("#chart-dialog tbody tr")).to_have_count(2)
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Enlarge Mean reward")).to_be_focused()
    words = "Chart over iteration: mean reward newest 0.180, lowest 0.100, highest 0.180"
    expect(page.get_by_role("img", name=words)).to_be_attached()
    press(page, "Events")
    expect(page.locator("#run-panel")).to_contain_text("iteration finished")
    expect(page.locator("#tab-events")).to_be_focused()
    page.set_viewport_size({"width": 390, "height": 800})
    page.locator("[data-action=drawer]").press("Enter")
    expect(page.locator("#rail a").first).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("[data-action=drawer]")).to_be_focused()
    expect(page.locator("#rail")).to_be_hidden()
