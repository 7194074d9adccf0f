"""A verifier's run launched in a real browser over real services, and its scores as people see them."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.runs.test_collect import PATIENCE_MS, enter_endpoint, line, page, shoot
from tests.fakes.openai_server import OpenAIServer, Reply, openai_server
from tests.integration.toy_line import TERMINAL, Line
from tests.integration.toy_yard import DATASET

__all__ = ["line", "page"]
pytestmark = [pytest.mark.e2e]
SAMPLES, TASKS = 6, 2


def judging(body: dict[str, Any], _number: int) -> Reply:
    """A judge that doubts empty patches."""
    text = body["messages"][-1]["content"]
    if "ready?" in text:
        return Reply(content="ready")
    chance = hashlib.sha256(text.encode()).digest()[0] / 255
    p_yes = 0.05 + 0.3 * chance if "changed nothing" in text else 0.6 + 0.35 * chance
    top = [{"token": "YES", "logprob": math.log(p_yes)}, {"token": "NO", "logprob": math.log1p(-p_yes)}]
    said = [{"token": "YES", "logprob": top[0]["logprob"], "top_logprobs": top}]
    return Reply(content="YES", logprobs={"content": said})


@pytest.fixture
def endpoint(line: Line) -> Iterator[OpenAIServer]:  # noqa: F811 - the fixture of the other module
    with openai_server(judging) as server:
        server.models = [{"id": "judge", "object": "model"}]
        yield server


def collected(line: Line, model: str, samples: int) -> int:  # noqa: F811
    line.stack.manage(
        *("collect", DATASET, "--model", model, "--recipe", "quickstart-oracle", "--samples", str(samples)),
        *("--set", f"seed={samples}"),
    )
    run = int(line.value("select max(id) from webapp_run"))
    line.until(lambda: line.state(run) in TERMINAL, "the end of the collection")
    return run


def test_a_verifier_is_launched_from_a_runs_page_and_shows_its_calibration(
    page: Page,  # noqa: F811
    line: Line,  # noqa: F811
    endpoint: OpenAIServer,
    screenshots: Path,
) -> None:
    enter_endpoint(page, endpoint)
    solved, unsolved = collected(line, "oracle", SAMPLES), collected(line, "noop", SAMPLES)
    page.goto(f"/runs/{solved}/")
    page.get_by_role("link", name="Verify", exact=True).click()
    page.wait_for_url("**/runs/new/**")
    field = "[id='s-{}']".format
    expect(page.locator(field("verifier.runs"))).to_have_value(str(solved))
    page.locator(field("verifier.runs")).fill(f"{solved}\n{unsolved}")
    page.locator(field("policy.type")).select_option("endpoint")
    expect(page.locator(field("policy.endpoint"))).to_have_value("lab")
    page.locator(field("policy.model")).fill("judge")
    shoot(page, screenshots, "verifier-form")
    page.get_by_role("button", name="Create and start").click()
    page.wait_for_url(re.compile(r"/runs/\d+/"))
    run = int(page.url.rstrip("/").rsplit("/", 1)[1])
    expect(page.locator("#run-header .chip").first).to_contain_text("succeeded", timeout=PATIENCE_MS)
    total = 2 * SAMPLES * TASKS
    assert line.value("select count(p_yes) from webapp_score where run_id = %s", run) == total
    page.reload()  # scores that came after the first ones wait behind a pill
    panel = page.locator("#run-panel")
    scores = panel.locator("tr[data-key^=score-]")
    expect(scores).to_have_count(total)
    expect(panel.locator("svg.reliability circle").first).to_be_visible()
    expect(panel).to_contain_text("1.000")
    shoot(page, screenshots, "verifier-scores")
    scores.locator("a").first.click()
    expect(page).to_have_url(re.compile(rf"/runs/({solved}|{unsolved})/train/0/"))
