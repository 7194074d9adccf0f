"""Report of an unresponsive web server by the page itself."""

from __future__ import annotations

import pytest
from playwright.sync_api import BrowserContext, expect

pytestmark = [pytest.mark.e2e, pytest.mark.django_db(transaction=True)]


def test_page_reports_an_unresponsive_web_server(context: BrowserContext) -> None:
    tab = context.new_page()
    tab.set_default_timeout(120_000)
    tab.goto("/login/")
    tab.route("**/healthz/banner", lambda route: route.abort())
    tab.wait_for_selector("#outages [data-outage=web]")
    expect(tab.locator("#outages")).to_contain_text("The web server does not answer")
    tab.unroute("**/healthz/banner")
    tab.wait_for_selector("#outages [data-outage=web]", state="detached")
