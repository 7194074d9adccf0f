"""Every page, with data of each kind: axe finds no violation, and nothing scrolls sideways at any width."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from urllib.parse import urlsplit

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.template.loader import render_to_string
from django.test import Client, RequestFactory
from django.urls import resolve, reverse
from playwright.sync_api import Browser, BrowserContext, Page, Route

from tests.builders.web.web_builders import make_user
from tests.drills.accessibility.site import Site, addresses, make_site
from tests.e2e.accessibility.audit import Walk
from tests.e2e.conftest import aside
from tests.unit.webapp.test_permissions import arguments, patterns
from webapp.core.permissions import Role

pytestmark = [pytest.mark.e2e]
SIGN_IN = "/login/?next=/runs/"
ERRORS: Mapping[str, dict[str, object]] = {
    "core/errors/400.html": {}, "core/errors/403.html": {"reason": "This needs the role operator."},
    "core/errors/404.html": {"reason": "There is no run 999."}, "core/errors/429.html": {},
    "core/errors/500.html": {"crumbs": ()}, "core/errors/503.html": {"outages": ()},
    "accounts/locked.html": {"minutes": 15, "attempts": 5},
}  # fmt: skip


def create_token(page: Page) -> None:
    page.get_by_label("Name").fill("continuous integration")
    with page.expect_navigation():
        page.get_by_role("button", name="Create").click()


OPENED: Mapping[str, tuple[str, Callable[[Page], None]]] = {
    "keys": ("runs", lambda page: page.keyboard.press("?")),
    "account menu": ("experiments", lambda page: page.locator(".user > summary").click()),
    "edit dialog": ("run, failed", lambda page: page.get_by_role("button", name="Edit").click()),
    "chart dialog": (
        "run groups",
        lambda page: page.get_by_role("button", name="Enlarge Mean reward").click(),
    ),
    "drawer": ("datasets", lambda page: page.evaluate("document.documentElement.dataset.drawer = 'open'")),
    "list of datasets": ("new quickstart", lambda page: page.locator("[name='dataset.name']").click()),
    "new token": ("tokens", create_token),
    "refused form": ("import", lambda page: page.get_by_role("button", name="Start the import").click()),
}
"""Menus, dialogs and forms: the name of the page and the action that opens each."""


def pages_without_an_entry(site: Site) -> list[str]:
    """Return the names of URL patterns that serve a whole page and are missing from the walk."""
    walked = [resolve(urlsplit(address).path).func for address in [*addresses(site).values(), SIGN_IN]]
    client = Client()
    client.force_login(User.objects.get(username="admin"))
    missing = []
    for pattern in patterns():
        if pattern.callback in walked:
            continue
        response = client.get(reverse(str(pattern.name), kwargs=arguments(pattern, site.yard)))
        is_text = response.status_code == 200 and not response.streaming
        if is_text and b"</html>" in response.content:
            missing.append(str(pattern.name))
    return missing


def error_page(template: str) -> str:
    request = RequestFactory().get("/")
    request.user = User.objects.get(username="admin")
    return render_to_string(template, dict(ERRORS[template]), request)


def prepared() -> tuple[Site, str]:
    """Build the site and sign in an administrator; return the site and the session key."""
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
    # The outage page reloads once the health check succeeds.
    public.page.route("**/healthz", lambda route: route.abort())
    for template in ERRORS:
        served = partial(Route.fulfill, body=aside(error_page, template), content_type="text/html")
        public.page.route(f"**/{template}", served)
        public.visit(template.replace("/", " "), f"/{template}")
    public.page.close()
    context.add_cookies([{"name": settings.SESSION_COOKIE_NAME, "value": session, "url": server}])
    walk, urls = Walk(page), addresses(site)
    for name, address in urls.items():
        walk.visit(name, address)
    for name, (page_name, act) in OPENED.items():
        walk.visit(name, urls[page_name], act)
    findings = public.findings + walk.findings
    assert not findings, "\n".join(findings)
