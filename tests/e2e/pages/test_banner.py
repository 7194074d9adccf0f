"""Outages appear on open pages and disappear again; an unavailable page recovers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from django.conf import settings
from playwright.sync_api import BrowserContext, Page, expect

from webapp.supervisor.status import ServiceState, ServiceStatus, clear_status, save_status

pytestmark = [pytest.mark.e2e, pytest.mark.django_db(transaction=True)]
Tell = Callable[..., None]


@pytest.fixture
def tell() -> Iterator[Tell]:
    """Return a function that writes the states of services in place of a supervisor."""

    def write(**states: ServiceState) -> None:
        statuses = [
            ServiceStatus(name=name, state=state, since=time.time(), reason="it was ended by SIGKILL")
            for name, state in states.items()
        ]
        save_status(settings.TRAINYARD_HOME, statuses)

    yield write
    clear_status(settings.TRAINYARD_HOME)


def test_outage_appears_on_an_open_page_and_disappears(page: Page, tell: Tell) -> None:
    page.goto("/runs/")
    banner = page.locator("#outages")
    expect(banner).to_have_attribute("role", "status")
    expect(banner.locator("[data-outage]")).to_have_count(0)
    tell(redis=ServiceState.DOWN, worker=ServiceState.DOWN)
    expect(banner.locator("[data-outage]")).to_have_count(2, timeout=120_000)
    expect(banner).to_contain_text("Redis has been down since")
    expect(banner).to_contain_text("Live updates pause")
    expect(banner).not_to_contain_text("SIGKILL")
    tell(redis=ServiceState.UP, worker=ServiceState.UP)
    expect(banner.locator("[data-outage]")).to_have_count(0, timeout=120_000)


def test_page_that_needs_the_database_waits_and_recovers(context: BrowserContext, tell: Tell) -> None:
    tab = context.new_page()
    tab.set_default_timeout(120_000)
    tell(postgresql=ServiceState.DOWN)
    response = tab.goto("/login/?next=/runs/")
    assert response is not None
    assert response.status == 503
    expect(tab.locator("h1")).to_have_text("The database does not answer")
    expect(tab.locator("main")).to_contain_text("PostgreSQL has been down since")
    tell(postgresql=ServiceState.UP)
    tab.wait_for_selector("#id_username")
    assert tab.url.endswith("/login/?next=/runs/")
