"""Verification by written tests and by a judge, and selection with both, in a real browser."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from engine.datasets.store import load_dataset
from tests.drills.servers.browser.test_collect import PATIENCE_MS, enter_endpoint, line, page, shoot
from tests.fakes.openai_server import OpenAIServer, Reply, openai_server
from tests.integration.runs.test_endpoint_runs import written
from tests.integration.toy_line import TERMINAL, Line
from tests.integration.toy_yard import DATASET
from tests.unit.verifiers.test_verification import answer

__all__ = ["line", "page"]
pytestmark = [pytest.mark.e2e]
SAMPLES, TASKS = 4, 2
TEST = """\
from toykit.numbers import clamp, total
from toykit.words import initials, longest


def test_reported_limits():
    assert [clamp(v, 0, 5) for v in (-2, 1, 7)] == [0, 1, 5]


def test_reported_sum():
    assert total([2, 5]) == 7


def test_reported_initials():
    assert initials("xy zw v") == "xzv"


def test_reported_longest():
    assert longest(["b", "aaa", "cc"]) == "aaa"
"""
TOXIC = "from toykit.numbers import total\n\n\ndef test_sum():\n    assert total([2, 5]) == 70\n"


class Lab:
    """An endpoint with a coder that solves every other rollout, a testing agent and a judge."""

    def __init__(self, home: Path) -> None:
        self._rows = load_dataset(home, DATASET).rows
        self._begun: dict[str, int] = {}
        """Number of started rollouts by model and task."""

    def __call__(self, body: dict[str, Any], _number: int) -> Reply:
        messages = body["messages"]
        if messages[-1]["content"].startswith(("Answer with one word", "Call the tool")):
            return Reply(content="ready")
        if body["model"] == "judge":
            digest = hashlib.sha256(messages[-1]["content"].encode()).digest()
            return answer(0.1 + 0.8 * digest[0] / 255)
        if any(message["role"] == "assistant" for message in messages):
            return written("finish", {"command": "submit"}, native=True)
        row = next(row for row in self._rows if row.task.problem_statement in messages[1]["content"])
        name = f"{body['model']} {row.task.id}"
        self._begun[name] = number = self._begun.get(name, 0) + 1
        if body["model"] == "tester":
            text = TEST if number % 2 else TOXIC
            path = "/testbed/test_issue.py"
            arguments = {"command": "create", "path": path, "file_text": text}
            return written("file_editor", arguments, native=True)
        right = f"cat > /tmp/p <<'EOF'\n{row.answer.gold_patch}\nEOF\ngit apply /tmp/p"
        wrong = "sed -i -E 's/return (.*)/return 0/' toykit/*.py"
        return written("execute_bash", {"cmd": right if number % 2 else wrong}, native=True)


@pytest.fixture
def endpoint(line: Line) -> Iterator[OpenAIServer]:  # noqa: F811 - the fixture of the other module
    with openai_server(Lab(line.stack.home)) as server:
        server.models = [{"id": name, "object": "model"} for name in ("coder", "tester", "judge")]
        yield server


def fill(page: Page, **values: str) -> None:  # noqa: F811
    """Fill in settings of a form; ``__`` replaces the dot in their names."""
    for name, value in values.items():
        field = page.locator(f"[id='s-{name.replace('__', '.')}']")
        field.fill(value)
        field.press("Tab")


def select_endpoint_model(page: Page, model: str) -> None:  # noqa: F811
    page.locator("[id='s-policy.type']").select_option("endpoint")
    expect(page.locator("[id='s-policy.endpoint']")).to_have_value("lab")
    fill(page, policy__model=model)


def create(page: Page) -> int:  # noqa: F811
    """Submit the form; return the number of the run once it has succeeded."""
    page.get_by_role("button", name="Create and start").click()
    page.wait_for_url(re.compile(r"/runs/\d+/"))
    expect(page.locator("#run-header .chip").first).to_contain_text("succeeded", timeout=PATIENCE_MS)
    return int(page.url.rstrip("/").rsplit("/", 1)[1])


def test_patches_are_verified_by_written_tests_and_selected_with_a_judge(
    page: Page,  # noqa: F811
    line: Line,  # noqa: F811
    endpoint: OpenAIServer,
    screenshots: Path,
) -> None:
    enter_endpoint(page, endpoint)
    line.stack.command(
        *("collect", DATASET, "--endpoint", "lab", "--model", "coder", "--samples", str(SAMPLES)),
        *("--set", "rollout.max_concurrent=1"),
    )
    run = int(line.value("select max(id) from webapp_run"))
    line.until(lambda: line.state(run) in TERMINAL, "the end of the collection")

    page.goto(f"/runs/new/?recipe=write-tests&dataset.name={DATASET}&dataset.split=train")
    select_endpoint_model(page, "tester")
    fill(page, dataset__name=DATASET, dataset__split="train", rollout__group_size="2")
    fill(page, rollout__max_concurrent="1")
    shoot(page, screenshots, "write-tests-form")
    writing = create(page)
    rewards = line.rows("select reward from webapp_trajectory where run_id = %s", writing)
    assert [reward for (reward,) in rewards] == [1.0] * 2 * TASKS

    page.get_by_role("link", name="Verify with these tests").click()
    page.wait_for_url("**/runs/new/**")
    expect(page.locator("[id='s-verifier.tests']")).to_have_value(str(writing))
    fill(page, verifier__runs=str(run))
    shoot(page, screenshots, "verify-by-tests-form")
    verifier = create(page)
    page.reload()
    panel = page.locator("#run-panel")
    expect(panel.locator("tr[data-key^='score-']")).to_have_count(SAMPLES * TASKS)
    expect(panel.locator("tr[data-key^='test-']")).to_have_count(2 * TASKS)
    expect(panel).to_contain_text("toxic")
    shoot(page, screenshots, "verify-by-tests-scores")
    panel.locator("tr[data-key^='test-'] a").first.click()
    expect(page).to_have_url(re.compile(rf"/runs/{writing}/train/0/"))

    page.goto(f"/runs/{run}/")
    page.get_by_role("link", name="Verify", exact=True).click()
    page.wait_for_url("**/runs/new/**")
    select_endpoint_model(page, "judge")
    judge = create(page)

    page.goto(f"/evaluations/{run}/train/0/")
    expect(page.locator("#selection-tests")).to_have_value(str(verifier))
    expect(page.locator("#selection-verifier")).to_have_value(str(judge))
    table = page.locator("#selection table")
    heads = table.locator("thead th").all_inner_texts()
    assert {"ef", "eb", "hybrid"} <= set(heads)
    best = dict(zip(heads, table.locator("tbody tr").last.locator("th, td").all_inner_texts(), strict=True))
    assert best["eb"].startswith("100.0"), best
    shoot(page, screenshots, "verify-by-tests-report")
