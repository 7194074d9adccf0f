"""Every page, with data of each kind: axe finds no violation, and nothing scrolls sideways at any width.

axe runs the rules of WCAG 2.0 to 2.2, levels A and AA, and its best practices, in light at 1440 px; contrast
and the rules that depend on the width again in dark at 390 px. 720 px is a window of 1440 px at 200 % zoom,
320 px the width that WCAG asks for (1.4.10, reflow).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from django.conf import settings
from django.contrib.auth.models import User
from django.template.loader import render_to_string
from django.test import Client, RequestFactory
from django.urls import resolve, reverse
from playwright.sync_api import Browser, BrowserContext, Page, Route

from tests.builders.web_builders import make_user
from tests.e2e.accessibility.site import Site, addresses, make_site
from tests.e2e.conftest import aside
from tests.unit.webapp.test_pages import arguments, patterns
from webapp.permissions import Role

pytestmark = [pytest.mark.e2e]
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
CROWDING = ["target-size", "scrollable-region-focusable"]
"""Rules that depend on the width: what is close together or scrolls in a narrow window."""
WIDTHS = {1440: "light", 1280: "", 720: "", 390: "dark", 320: ""}
"""Widths of the window, and the theme in which axe runs there."""
RUNS: Mapping[str, tuple[dict[str, object], list[str]]] = {
    "light": ({"type": "tag", "values": TAGS}, CROWDING), "dark": ({"type": "rule", "values": CROWDING}, []),
}  # fmt: skip
AUDIT = Path(__file__).with_name("audit.js").read_text()
SIGN_IN = "/login/?next=/runs/"
ERRORS: Mapping[str, dict[str, object]] = {
    "errors/400.html": {}, "errors/403.html": {"reason": "This needs the role operator."},
    "errors/404.html": {"reason": "There is no run 999."}, "errors/429.html": {},
    "errors/500.html": {"crumbs": ()}, "errors/503.html": {"outages": ()},
    "accounts/locked.html": {"minutes": 15, "attempts": 5},
}  # fmt: skip
OPENED: Mapping[str, tuple[str, Callable[[Page], None]]] = {
    "keys": ("runs", lambda page: page.keyboard.press("?")),
    "account menu": ("experiments", lambda page: page.locator(".user > summary").click()),
    "edit dialog": ("run, failed", lambda page: page.get_by_role("button", name="Edit").click()),
    "chart dialog": ("run groups", lambda page: page.get_by_role("button", name="Enlarge Reward").click()),
    "drawer": ("datasets", lambda page: page.evaluate("document.documentElement.dataset.drawer = 'open'")),
    "list of datasets": ("new quickstart", lambda page: page.locator("[name='dataset.name']").click()),
    "refused form": ("import", lambda page: page.get_by_role("button", name="Start the import").click()),
}
"""What people open on a page, by the page's name."""


class Walk:
    """Audits pages in a tab and collects what is wrong with them."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.findings: list[str] = []

    def visit(self, name: str, address: str, act: Callable[[Page], None] | None = None) -> None:
        """Open a page, unfold everything on it and audit it."""
        self.page.set_viewport_size({"width": 1440, "height": 900})
        self.page.goto(address)
        self.page.evaluate(AXE_SCRIPT)
        self.page.evaluate("for (const part of document.querySelectorAll('main details')) part.open = true")
        # Steps out of sight are not laid out, so nobody could tell which of their parts scroll.
        self.page.evaluate(
            "document.styleSheets[0].insertRule('.step { content-visibility: visible !important }')"
        )
        if act:
            act(self.page)
        audit = self.page.evaluate_handle(AUDIT)
        for width, theme in WIDTHS.items():
            self.page.set_viewport_size({"width": width, "height": 450 if width == 720 else 900})
            if theme:
                self.page.evaluate("theme => { document.documentElement.dataset.theme = theme }", theme)
            found = audit.evaluate("audit => audit.overflowing()")
            if theme:
                found += audit.evaluate(
                    "(audit, [only, without]) => audit.violations(only, without)", RUNS[theme]
                )
                self._shoot(f"{name}-{width}-{theme}")
            self.findings += [f"{name} at {width} px: {finding}" for finding in found]

    def _shoot(self, name: str) -> None:
        folder = os.environ.get("TRAINYARD_SCREENSHOTS")
        if folder:
            self.page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


def pages_without_an_entry(site: Site) -> list[str]:
    """Return the names of the addresses that answer with a whole page and that nobody walks."""
    walked = [resolve(urlsplit(address).path).func for address in [*addresses(site).values(), SIGN_IN]]
    client = Client()
    client.force_login(User.objects.get(username="admin"))
    found = []
    for pattern in patterns():
        if pattern.callback in walked:
            continue
        response = client.get(reverse(str(pattern.name), kwargs=arguments(pattern, site.yard)))
        is_text = response.status_code == 200 and not response.streaming
        if is_text and b"</html>" in response.content:
            found.append(str(pattern.name))
    return found


def error_page(template: str) -> str:
    request = RequestFactory().get("/")
    request.user = User.objects.get(username="admin")
    return render_to_string(template, dict(ERRORS[template]), request)


def prepared() -> tuple[Site, str]:
    """Build the site and sign an administrator in; returns it and the session."""
    client = Client()
    client.force_login(make_user("admin", Role.ADMIN))
    return make_site(), client.cookies[settings.SESSION_COOKIE_NAME].value


def test_no_page_violates_the_guidelines_or_scrolls_sideways(
    browser: Browser, context: BrowserContext, page: Page, server: str
) -> None:
    site, session = aside(prepared)
    assert aside(pages_without_an_entry, site) == []
    public = Walk(browser.new_page(base_url=server))
    public.visit("sign-in", SIGN_IN)
    public.page.route(
        "**/healthz", lambda route: route.abort()
    )  # the page of an outage would leave when it is over
    for template in ERRORS:
        served = partial(Route.fulfill, body=aside(error_page, template), content_type="text/html")
        public.page.route(f"**/{template}", served)
        public.visit(template.replace("/", " "), f"/{template}")
    public.page.close()
    context.add_cookies([{"name": settings.SESSION_COOKIE_NAME, "value": session, "url": server}])
    walk, found = Walk(page), addresses(site)
    for name, address in found.items():
        walk.visit(name, address)
    for name, (of, act) in OPENED.items():
        walk.visit(name, found[of], act)
    findings = public.findings + walk.findings
    assert not findings, "\n".join(findings)
