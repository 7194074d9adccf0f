"""Audit of open pages: violations of axe's rules, and sideways scrolling at any width.

axe runs the rules of WCAG 2.0 to 2.2, levels A and AA, and its best practices, in light at 1440 px; contrast
and the rules that depend on the width again in dark at 390 px. 720 px is a window of 1440 px at 200 % zoom,
320 px the width that WCAG requires (1.4.10, reflow).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Page

TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
CROWDING = ["target-size", "scrollable-region-focusable"]
"""Rules on crowded and on scrollable elements, which depend on the width."""
WIDTHS: Mapping[int, str] = {1440: "light", 1280: "", 720: "", 390: "dark", 320: ""}
"""Widths of the window, and the theme in which axe runs there."""
RUNS: Mapping[str, tuple[dict[str, object], list[str]]] = {
    "light": ({"type": "tag", "values": TAGS}, CROWDING), "dark": ({"type": "rule", "values": CROWDING}, []),
}  # fmt: skip
AUDIT = Path(__file__).with_name("audit.js").read_text()


class Walk:
    """Audit of pages in one tab, with the findings of all pages."""

    def __init__(self, page: Page, widths: Collection[int] = WIDTHS) -> None:
        self.page = page
        self.widths = {width: WIDTHS[width] for width in widths}
        self.findings: list[str] = []

    def visit(self, name: str, address: str, act: Callable[[Page], None] | None = None) -> None:
        """Open a page, unfold everything on it and audit it."""
        self.page.set_viewport_size({"width": 1440, "height": 900})
        self.page.goto(address)
        self.page.evaluate("for (const part of document.querySelectorAll('main details')) part.open = true")
        # Steps out of sight are not laid out, so that their overflow could not be measured.
        self.page.evaluate(
            "document.styleSheets[0].insertRule('.step { content-visibility: visible !important }')"
        )
        if act:
            act(self.page)
        self.page.evaluate(AXE_SCRIPT)
        audit = self.page.evaluate_handle(AUDIT)
        for width, theme in self.widths.items():
            self.page.set_viewport_size({"width": width, "height": 450 if width == 720 else 900})
            if theme:
                self.page.evaluate("theme => { document.documentElement.dataset.theme = theme }", theme)
            page_findings = audit.evaluate("audit => audit.overflowing()")
            if theme:
                page_findings += audit.evaluate(
                    "(audit, [only, without]) => audit.violations(only, without)", RUNS[theme]
                )
                self._shoot(f"{name}-{width}-{theme}")
            self.findings += [f"{name} at {width} px: {finding}" for finding in page_findings]

    def _shoot(self, name: str) -> None:
        folder = os.environ.get("TRAINYARD_SCREENSHOTS")
        if folder:
            self.page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)
