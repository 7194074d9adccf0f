"""Endpoints, text-only trajectories and engines in a real browser."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.test import Client
from playwright.sync_api import Page, expect

from tests.builders.event_builders import T0, Stream, ref
from tests.builders.web_builders import launched, make_user, post
from tests.e2e.conftest import aside
from webapp.models import Endpoint, Run
from webapp.permissions import Role
from webapp.services.access import endpoints

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
    """Lists two models to those who know the key."""

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


def shoot(page: Page, server: str, folder: Path, name: str) -> None:
    """A screenshot in each theme; the page fits its window."""
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
    for theme in ("light", "dark"):
        page.evaluate("theme => { document.documentElement.dataset.theme = theme }", theme)
        page.screenshot(path=folder / f"{name}-{theme}.png", full_page=True)


def test_an_administrator_enters_tests_and_removes_an_endpoint_with_the_keyboard(
    admin: Page, server: str, api: str, screenshots: Path
) -> None:
    admin.goto("/endpoints/")
    shoot(admin, server, screenshots, "endpoints-empty")
    admin.focus("#e-name")
    for text in ("hosted", api, KEY, "glm-*, qwen3-*", "for collections and judges"):
        admin.keyboard.type(text)
        admin.keyboard.press("Tab")
    admin.keyboard.press("Enter")
    expect(admin.get_by_text("Endpoint hosted was saved.")).to_be_visible()
    admin.wait_for_load_state()  # before its scripts ran, the form would be sent as a page
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
    shoot(admin, server, screenshots, "endpoints-tested")
    aside(endpoints.save, name="stale", address=api, key="sk-a-key-that-was-revoked")
    admin.goto("/endpoints/")
    admin.get_by_role("button", name="Test").nth(1).click()
    expect(admin.get_by_text("status 401: Incorrect API key provided")).to_be_visible()
    assert "revoked" not in admin.content()
    shoot(admin, server, screenshots, "endpoints-refused")
    admin.set_viewport_size({"width": 390, "height": 900})
    shoot(admin, server, screenshots, "endpoints-narrow")
    admin.set_viewport_size({"width": 1440, "height": 900})
    admin.goto("/endpoints/?edit=hosted")
    admin.get_by_label("a vLLM server whose weights runs may replace").check()
    shoot(admin, server, screenshots, "endpoints-change")
    admin.get_by_role("button", name="Save").click()
    expect(admin.get_by_text("attachable", exact=True)).to_be_visible()
    shoot(admin, server, screenshots, "endpoints-attachable")
    assert admin.input_value("#e-key") == ""
    admin.on("dialog", lambda dialog: dialog.accept())
    admin.get_by_role("button", name="Remove").first.click()
    expect(admin.get_by_text("Endpoint hosted and its key were removed.")).to_be_visible()
    assert aside(lambda: list(Endpoint.objects.values_list("name", flat=True))) == ["stale"]


def test_another_policy_type_shows_its_own_settings(page: Page, server: str, screenshots: Path) -> None:
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
    shoot(page, server, screenshots, "new-run-endpoint")
    page.click("text=Save as draft")
    expect(page).to_have_url(f"{server}/runs/{aside(lambda: Run.objects.get().pk)}/")


def chat_stream() -> Stream:
    """A finished and a live rollout of an endpoint."""
    stream = Stream()
    stream.started()
    for index in range(2):
        stream.add("trajectory_started", ref=ref(0, "a", index), sandbox_id="sb-1")
        for step in range(4):
            cached = 1100 * step
            stream.step(
                ref(0, "a", index), step, prompt_tokens=1400 * (step + 1), cached_tokens=cached,
                cost=0.0042 - 0.0008 * step, thinking_tokens=None if index else 40, generated_tokens=180,
            )  # fmt: skip
    stream.add(
        "trajectory_finished", ref=ref(0, "a", 0), termination="submitted", verdict="passed", reward=1.0,
        num_steps=4, prompt_tokens=1400, cached_tokens=6600, generated_tokens=720, thinking_tokens=160,
        cost=0.012, prompt="deepswe_v1", prompt_hash="0123456789abcdef", total_seconds=31.0,
        model_seconds=27.0, tool_seconds=1.5, grading_seconds=2.0,
    )  # fmt: skip
    return stream


def test_a_text_only_trajectory_says_so_and_shows_its_cost(
    page: Page, server: str, screenshots: Path
) -> None:
    def posted() -> int:
        run, claim = launched()
        config = {"type": "endpoint", "endpoint": "hosted", "model": "glm-4.6"}
        Run.objects.filter(pk=run.pk).update(config=run.config | {"policy": config})
        post(claim, chat_stream())
        return int(run.pk)

    run = aside(posted)
    page.goto(f"/runs/{run}/train/0/a/0/")
    expect(page.get_by_text("No token ids: the endpoint returns text only.")).to_be_visible()
    expect(page.get_by_text("$0.012", exact=True)).to_be_visible()
    shoot(page, server, screenshots, "trajectory-text-only")
    page.goto(f"/runs/{run}/train/0/a/")
    shoot(page, server, screenshots, "group-text-only")
    page.goto(f"/runs/{run}/?tab=trajectories")
    shoot(page, server, screenshots, "run-text-only")


def replica(name: str, second: int, **fields: Any) -> dict[str, Any]:
    wave = (second * 7 + len(name)) % 40
    defaults = {
        "name": name, "state": "ready", "version": second // 60, "running": 12 + wave // 8,
        "waiting": wave // 20, "kv_use": 0.35 + wave / 100, "prefix_hit_rate": min(0.95, 0.2 + second / 400),
        "tokens_per_s": 380.0 + 3 * wave, "restarts": 0, "detail": "",
    }  # fmt: skip
    return defaults | fields


def test_the_engines_of_a_run_live(page: Page, server: str, screenshots: Path) -> None:
    def begun() -> tuple[Run, Any, Stream]:
        run, claim = launched()
        stream = Stream()
        stream.started()
        for second in range(0, 600, 20):
            replicas = [replica("engine-0", second), replica("engine-1", second + 13)]
            stream.add("engines_reported", replicas=replicas, time=T0 + second)
        post(claim, stream)
        return run, claim, stream

    run, claim, stream = aside(begun)
    page.goto(f"/runs/{run.pk}/?tab=engines")
    expect(page.get_by_text("2 of 2 engines serve")).to_be_visible()
    before = len(stream.lines)
    why = "its log-probabilities differ by 0.31 nats from version 9"
    idle = {"running": 0, "waiting": 0, "kv_use": 0.0, "tokens_per_s": 0.0, "version": None}
    lost = replica("engine-1", 0, state="left_out", restarts=3, detail=why, **idle)
    stream.add("engines_reported", replicas=[replica("engine-0", 600), lost], queued=3, time=T0 + 605)
    aside(post, claim, stream, before)
    expect(page.get_by_text("engine-1 was left out.")).to_be_visible()
    expect(page.get_by_text("1 of 2 engines serve")).to_be_visible()
    expect(page.locator("#run-header").get_by_text("1 left out")).to_be_visible()
    shoot(page, server, screenshots, "run-engines")
    page.set_viewport_size({"width": 390, "height": 900})
    shoot(page, server, screenshots, "run-engines-narrow")


def test_the_metrics_of_evaluations_are_charts(page: Page, server: str, screenshots: Path) -> None:
    def evaluated() -> int:
        run, claim = launched()
        stream = Stream()
        stream.started()
        for step in range(6):
            ends = {"submitted": 0.5 + 0.08 * step, "max_steps": 0.3 - 0.05 * step, "cancelled": 0.02}
            metrics = {f"termination/{reason}": share for reason, share in ends.items()} | {
                "engine/prefix_hit_rate": 0.5 + 0.09 * step, "engine/tokens_per_s": 900.0 - 40 * step,
                "steps/mean": 6.0 - 0.4 * step, "endpoint/answered": 300.0, "endpoint/repeated": 3.0 * step,
            }  # fmt: skip
            stream.add(
                "evaluation_finished", iteration=10 * step, name="heldout", policy_version=10 * step,
                num_samples=64, num_tasks=16, num_solved=8, solve_rate=0.4 + 0.05 * step,
                interval_low=0.3 + 0.05 * step, interval_high=0.5 + 0.05 * step, metrics=metrics,
            )  # fmt: skip
        post(claim, stream)
        return int(run.pk)

    run = aside(evaluated)
    page.goto(f"/runs/{run}/?tab=evaluation")
    expect(page.locator("#run-panel .chart")).to_have_count(5)
    shoot(page, server, screenshots, "run-evaluation-charts")
    page.set_viewport_size({"width": 390, "height": 900})
    shoot(page, server, screenshots, "run-evaluation-charts-narrow")
