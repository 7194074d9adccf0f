"""Endpoints, text-only trajectories and engines in a real browser."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from django.conf import settings
from django.test import Client
from playwright.sync_api import Page, expect

from tests.builders.web.web_builders import make_user
from tests.e2e.conftest import aside
from webapp.core.permissions import Role
from webapp.endpoints.services import endpoints
from webapp.models import Endpoint, Run

pytestmark = [pytest.mark.e2e]
KEY = "sk-typed-into-a-browser-4321"
ADDRESS = "https://api.example.org/v1"


def _session(role: Role) -> str:
    client = Client()
    client.force_login(make_user(role.value, role))
    return client.cookies[settings.SESSION_COOKIE_NAME].value


@pytest.fixture
def admin(page: Page, server: str) -> Page:
    """A tab of an administrator."""
    session = aside(_session, Role.ADMIN)
    page.context.add_cookies([{"name": settings.SESSION_COOKIE_NAME, "value": session, "url": server}])
    return page


class _Api(BaseHTTPRequestHandler):
    """API that lists two models for requests with the key."""

    def do_GET(self) -> None:
        known = self.headers.get("Authorization") == f"Bearer {KEY}"
        body: Any = {"data": [{"id": "glm-4.6"}, {"id": "qwen3-coder-480b"}]}
        if not known:
            body = {"error": {"message": f"Incorrect API key provided: {self.headers['Authorization']}"}}
        self.send_response(200 if known else 401)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_arguments: Any) -> None:
        pass


@pytest.fixture
def api() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Api)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


def test_administrator_adds_tests_and_removes_an_endpoint_by_keyboard(admin: Page, api: str) -> None:
    admin.goto("/endpoints/")
    admin.focus("#e-name")
    for text in ("hosted", api, KEY, "glm-*, qwen3-*", "for collections and judges"):
        admin.keyboard.type(text)
        admin.keyboard.press("Tab")
    admin.keyboard.press("Enter")
    expect(admin.get_by_text("Endpoint hosted was saved.")).to_be_visible()
    admin.wait_for_load_state()  # without its scripts, the form would load a new page
    assert KEY not in admin.content()
    expect(admin.get_by_text("for collections and judges")).to_be_visible()
    expect(admin.get_by_text(f"…{KEY[-4:]}")).to_be_visible()
    test = admin.get_by_role("button", name="Test")
    test.focus()
    admin.keyboard.press("Enter")
    expect(admin.get_by_text("qwen3-coder-480b")).to_be_visible()
    expect(test).to_be_focused()
    admin.keyboard.press("Enter")
    expect(test).to_be_focused()
    aside(endpoints.save, name="stale", address=api, key="sk-a-key-that-was-revoked")
    admin.goto("/endpoints/")
    admin.get_by_role("button", name="Test").nth(1).click()
    expect(admin.get_by_text("status 401: Incorrect API key provided")).to_be_visible()
    assert "revoked" not in admin.content()
    admin.goto("/endpoints/?edit=hosted")
    admin.get_by_label("a vLLM server whose weights runs may replace").check()
    admin.get_by_role("button", name="Save").click()
    expect(admin.get_by_text("attachable", exact=True)).to_be_visible()
    assert admin.input_value("#e-key") == ""
    admin.on("dialog", lambda dialog: dialog.accept())
    admin.get_by_role("button", name="Remove").first.click()
    expect(admin.get_by_text("Endpoint hosted and its key were removed.")).to_be_visible()
    assert aside(lambda: list(Endpoint.objects.values_list("name", flat=True))) == ["stale"]


def test_changing_the_policy_type_shows_the_settings_of_that_type(page: Page, server: str) -> None:
    aside(endpoints.save, name="hosted", address=ADDRESS, key=KEY)
    page.goto("/runs/new/?recipe=quickstart-evaluate")
    page.locator("summary", has_text="policy").first.click()
    page.select_option("[name='policy.type']", "endpoint")
    expect(page.locator("[name='policy.model']")).to_be_visible()
    assert page.locator("[name='policy.checkpoint']").count() == 0
    expect(page.locator("[name='policy.endpoint']")).to_have_value("hosted")
    expect(page.locator("#form-check .notice.error")).to_have_count(1)
    page.fill("[name='policy.model']", "glm-4.6")
    page.keyboard.press("Tab")
    expect(page.locator("#form-check .notice.error")).to_have_count(0)
    expect(page.locator(".differences [data-origin=hand] .num")).to_have_text("3")
    page.click("text=Save as draft")
    expect(page).to_have_url(f"{server}/runs/{aside(lambda: Run.objects.get().pk)}/")
