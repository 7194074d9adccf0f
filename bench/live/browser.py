"""Tabs in Chromium that record when an update changed the page and when the change was painted."""

from __future__ import annotations

import os
import time
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from bench.live.clients import CLOSING_S
from bench.live.plan import PERIOD_S, WATCHED_FROM_S, Tab, tabs

RECORD = """
  window.benchFrames = [];
  document.addEventListener("trainyard:live", (event) => {
    const frame = { seq: event.detail.seq, time: Date.now() / 1000 };
    window.benchFrames.push(frame);
    requestAnimationFrame(() => setTimeout(() => { frame.painted = Date.now() / 1000; }));
  });
"""


def watch(settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Show the first tabs of the plan until the run has ended; return their logs like ``clients``."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=os.environ.get("CHROMIUM", "/usr/bin/chromium"),
            args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"],
        )
        opened = tabs(settings["tabs"])[: settings["browsers"]]
        logs: list[dict[str, Any]] = [{"tab": number, "frames": []} for number in range(len(opened))]
        pages = [_page(browser, settings, tab) for tab in opened]
        for iteration in range(settings["iterations"]):
            _wait(pages, settings["start"] + iteration * PERIOD_S + WATCHED_FROM_S)
            for tab, page, log in zip(opened, pages, logs, strict=True):
                if iteration == 0 or tab.target(iteration):
                    _collect(page, log, iteration - 1)
                    page.goto(_address(settings["run"], tab, iteration), wait_until="domcontentloaded")
        _wait(pages, settings["start"] + settings["iterations"] * PERIOD_S + CLOSING_S)
        for page, log in zip(pages, logs, strict=True):
            _collect(page, log, settings["iterations"] - 1)
        browser.close()
    return logs


def _page(browser: Browser, settings: dict[str, Any], tab: Tab) -> Page:
    name, _, value = settings["cookies"][tab.role].partition("=")
    context = browser.new_context(base_url=settings["base"], viewport={"width": 1440, "height": 900})
    context.add_cookies([{"name": name, "value": value, "url": settings["base"]}])
    page = context.new_page()
    page.add_init_script(RECORD)
    return page


def _address(run: int, tab: Tab, iteration: int) -> str:
    parts = "".join(f"{part}/" for part in tab.target(iteration))
    return f"/runs/{run}/{parts}{tab.query}"


def _collect(page: Page, log: dict[str, Any], iteration: int) -> None:
    """Move the page's recorded frames into its log, as frames of ``iteration``."""
    frames = page.evaluate("window.benchFrames || []")
    log["frames"] += [{**frame, "iteration": iteration} for frame in frames]


def _wait(pages: list[Page], until: float) -> None:
    while (remaining_s := until - time.time()) > 0:
        pages[0].wait_for_timeout(min(1000, 1000 * remaining_s))
