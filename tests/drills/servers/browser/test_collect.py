"""Collection from an endpoint in a real browser, with real services and sandboxes, and a killed engine."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.fakes.openai_server import OpenAIServer, openai_server
from tests.integration.runs.test_endpoint_runs import solving
from tests.integration.toy_line import TERMINAL, Line, running_line, sandboxes_left
from tests.integration.toy_yard import DATASET

pytestmark = [pytest.mark.e2e]
PATIENCE_MS = 400_000
SAMPLES, TASKS = 8, 2
KEY = "sk-correct-horse-battery-staple-4711"


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    with running_line(tmp_path, {}, taught=False) as running:
        yield running


@pytest.fixture
def endpoint(line: Line) -> Iterator[OpenAIServer]:
    """A model that solves every task with native tool calls, slow enough to be watched."""
    with openai_server(solving(line.stack.home, native=True)) as server:
        server.models = [{"id": "coder", "object": "model"}]
        server.pause_s = 1.0
        yield server


@pytest.fixture
def page(browser: Browser, line: Line) -> Iterator[Page]:
    """A tab of a signed-in administrator; errors in its console fail the test."""
    printed = line.stack.command("account", "create", "ada", "--role", "admin")
    context = browser.new_context(
        base_url=line.stack.environment["TRAINYARD_WEB_URL"], viewport={"width": 1440, "height": 900}
    )
    opened = context.new_page()
    opened.set_default_timeout(60_000)
    errors: list[str] = []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    opened.goto("/login/")
    opened.get_by_label("User name").fill("ada")
    opened.get_by_label("Password").fill(printed.split()[-1])
    opened.get_by_role("button", name="Sign in").click()
    yield opened
    assert errors == []
    context.close()


def shoot(page: Page, folder: Path, name: str) -> None:
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        page.screenshot(path=folder / f"{name}-{theme}.png", full_page=True)


def enter_endpoint(page: Page, server: OpenAIServer) -> None:
    page.goto("/endpoints/")
    page.get_by_label("Name").fill("lab")
    page.get_by_role("textbox", name="Address").fill(server.url)
    page.get_by_label("Key", exact=True).fill(KEY)
    page.get_by_role("button", name="Add").click()
    expect(page.get_by_role("cell", name="lab", exact=True)).to_be_visible()
    assert KEY not in page.content()


def start_collection(page: Page, screenshots: Path) -> None:
    page.goto(f"/datasets/{DATASET}/")
    page.get_by_role("link", name="Collect trajectories").click()
    page.wait_for_url("**/runs/new/**")  # including its scripts, which react to the choices below
    field = "[id='s-{}']".format
    page.locator(field("policy.type")).select_option("endpoint")
    expect(page.locator(field("policy.endpoint"))).to_have_value("lab")
    values = {
        "policy.model": "coder", "policy.input_price": "1", "policy.output_price": "10",
        "policy.spend_limit": "5", "rollout.group_size": str(SAMPLES), "rollout.max_concurrent": "2",
        "agent.rollout_timeout_s": "600",
    }  # fmt: skip
    for name, value in values.items():
        page.locator(field(name)).fill(value)
    page.locator(field("policy.model")).press("Tab")
    expect(page.locator(field("agent.tool_format"))).to_have_value("native")
    shoot(page, screenshots, "collect-form")
    page.get_by_role("button", name="Create and start").click()
    page.wait_for_url(re.compile(r"/runs/\d+/"))


def test_endpoint_collection_survives_a_kill_and_exports_predictions(
    page: Page, line: Line, endpoint: OpenAIServer, screenshots: Path
) -> None:
    enter_endpoint(page, endpoint)
    start_collection(page, screenshots)
    run = int(page.url.rstrip("/").rsplit("/", 1)[1])
    header, total = page.locator("#run-header"), SAMPLES * TASKS
    expect(header).to_contain_text("coder at lab")
    expect(header).to_contain_text(re.compile(rf"\b[2-9]\s+of {total}\b"), timeout=PATIENCE_MS)
    expect(header).to_contain_text("95 %:")
    shoot(page, screenshots, "collect-going")
    engine = line.engine_pid(run)
    os.killpg(engine, signal.SIGKILL)
    expect(header).to_contain_text(re.compile(rf"resumed at \d+ of {total}"), timeout=PATIENCE_MS)
    expect(header).to_contain_text("succeeded", timeout=PATIENCE_MS)
    assert line.state(run) in TERMINAL
    expect(header).to_contain_text(re.compile(rf"{total}\s+of {total}"))
    expect(header).to_contain_text("solved 16")
    expect(header).to_contain_text(re.compile(r"\$\d\.\d+ of \$5\.00"))
    rows = line.rows("select task_key, index, reward, cost > 0 from webapp_trajectory where run_id = %s", run)
    assert len({row[:2] for row in rows}) == len(rows) == total
    assert {row[2:] for row in rows} == {(1.0, True)}
    assert sandboxes_left(line, run) == []
    shoot(page, screenshots, "collect-done")
    with page.expect_download() as download:
        page.get_by_role("link", name="predictions.jsonl").first.click()
    exported = [json.loads(text) for text in download.value.path().read_text().splitlines()]
    assert len(exported) == TASKS
    assert all("diff --git" in prediction["model_patch"] for prediction in exported)
    page.goto(f"/runs/{run}/?tab=trajectories")
    expect(page.locator("#run-panel")).to_contain_text("text only")
    shoot(page, screenshots, "collect-trajectories")
    page.locator("#run-panel tbody tr a").first.click()
    expect(page.locator("#trajectory-outcome")).to_contain_text(
        "No token ids: the endpoint returns text only."
    )
    shoot(page, screenshots, "collect-trajectory")
    page.goto("/runs/")
    expect(page.get_by_role("cell", name="coder at lab")).to_be_visible()
    shoot(page, screenshots, "collect-runs")
