"""Tries of models before a launch: on the form, the page of models, in the API and as commands."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from tests.builders.commands import command_result, run_command
from tests.builders.web.event_builders import Stream
from tests.builders.web.html_regions import form_values, inner_html
from tests.builders.web.web_builders import post, signed_in
from webapp.core.permissions import Role
from webapp.models import Dataset, Run
from webapp.runs.cli import models as commands
from webapp.runs.selectors import policies
from webapp.runs.services import attempts, runs, tries

pytestmark = pytest.mark.django_db
SMALL = {"policy.checkpoint": "builtin:quickstart", "agent.prompt": "compact_v1", "agent.max_context": 1024}
CALLS = {
    "responses": 17, "responses_with_call": 0, "valid_calls": 0, "responses_cut_off": 3,
    "response_tokens": 3400, "sampling_seconds": 40.0, "peak_memory_mb": 700.0,
}  # fmt: skip


@pytest.fixture(autouse=True)
def dataset() -> Dataset:
    return Dataset.objects.create(name="quickstart")


@pytest.fixture
def operator() -> Client:
    return signed_in(Role.OPERATOR)


def finish(run: Run, **summary: Any) -> None:
    """End a queued run as its engine does."""
    claim = attempts.claim_launch(run_id=run.pk)
    assert claim is not None
    stream = Stream()
    stream.add("run_started", host="h", pid=1, rollouts_kept=0, total_iterations=1)
    stream.add("run_finished", state="succeeded", summary=CALLS | summary)
    post(claim, stream)


def test_a_try_is_one_run_for_each_tool_format() -> None:
    native, xml = tries.start(overrides=SMALL)
    assert (native.state, xml.state, xml.recipe, xml.kind) == ("queued", "queued", "try-model", "rollout")
    assert (native.config["agent"]["tool_format"], xml.config["agent"]["tool_format"]) == ("native", "xml")
    assert (xml.config["dataset"]["limit"], xml.config["rollout"]["group_size"]) == (4, 1)
    assert xml.config["collection"]["early_stop"] == 0


def test_the_form_tries_the_model_as_the_run_would_use_it(operator: Client) -> None:
    page = operator.get("/runs/new/?recipe=quickstart").content.decode()
    assert "Not tried with the prompt <code>compact_v1</code> yet" in page
    filled = form_values(page, "run-form") | {"agent.max_response": "100", "trainer.iterations": "3"}
    answer = operator.post("/runs/new/", filled | {"then": "try"})
    assert answer.status_code == 200
    native, xml = Run.objects.order_by("pk")
    agent = xml.config["agent"]
    assert (agent["prompt"], agent["max_context"], agent["max_response"]) == ("compact_v1", 1024, 100)
    assert agent["max_steps"] == 4
    shown = inner_html(answer.content.decode(), "form-check")
    assert "Trying…" in shown
    assert 'hx-trigger="every 4s"' in shown
    assert 'value="100"' in answer.content.decode(), "the entered settings are kept"
    for run in (native, xml):
        finish(run)
    shown = inner_html(operator.post("/runs/new/", filled | {"then": "check"}).content.decode(), "form-check")
    assert "hx-trigger" not in shown
    assert f'href="/runs/{xml.pk}/"' in shown
    assert "17 of 17 responses held no call in this format: fine-tune first" in shown
    assert "conversation.tool_format=xml" in shown
    other = operator.post("/runs/new/", filled | {"agent.prompt": "deepswe_v1", "then": "check"})
    assert "Not tried with the prompt <code>deepswe_v1</code> yet" in other.content.decode()


def test_the_form_waits_for_tries_that_are_queued_or_running_only(operator: Client) -> None:
    run = tries.start(overrides=SMALL)[1]
    filled = form_values(operator.get("/runs/new/?recipe=quickstart").content.decode(), "run-form")

    def checked() -> str:
        return operator.post("/runs/new/", filled | {"then": "check"}).content.decode()

    Run.objects.exclude(pk=run.pk).delete()
    assert "Trying…" in checked()
    assert "Reload the page to see the results." in operator.get("/models/").content.decode()
    Run.objects.filter(pk=run.pk).update(state="paused")
    assert "Try again" in checked()
    assert "every 4s" not in checked()
    runs.create(recipe="try-model", overrides=SMALL)
    assert f'href="/runs/{run.pk}/"' in inner_html(checked(), "form-tries"), "a draft hides no earlier try"
    page = operator.get("/models/").content.decode()
    assert page.count('data-key="try-') == 1
    assert "Reload the page" not in page


def test_runs_of_another_kind_are_no_tries(operator: Client) -> None:
    body = {"recipe": "import-dataset", "overrides": {"recipe": "try-model"}}
    refused = operator.post("/api/v1/runs", json.dumps(body), content_type="application/json")
    assert refused.status_code == 422
    assert "recipe: cannot be overridden" in refused.content.decode()
    run = runs.create(recipe="quickstart-dataset")
    Run.objects.filter(pk=run.pk).update(recipe="try-model", state="queued")
    page = operator.get("/models/")
    assert page.status_code == 200
    assert "No tries yet" in page.content.decode()


def test_a_try_that_cuts_most_responses_off_asks_for_another(operator: Client) -> None:
    for run in tries.start(overrides=SMALL):
        finish(run, responses_cut_off=12)
    page = operator.get("/models/").content.decode()
    assert "12 of 17 responses were cut off, the try stops them at 256 tokens: try again with more" in page
    assert "agent.max_response=512" in page
    assert "fine-tune first" not in page


def test_a_model_that_cannot_be_tried_is_refused_with_the_reason(operator: Client, dataset: Dataset) -> None:
    page = operator.get("/runs/new/?recipe=quickstart").content.decode()
    filled = form_values(page, "run-form")
    dataset.delete()
    answer = operator.post("/runs/new/", filled | {"then": "try"}).content.decode()
    assert "`trainyard run launch quickstart-dataset` makes &#x27;quickstart&#x27;" in answer
    assert not Run.objects.exists()
    posted = operator.post("/models/try/", {"checkpoint": "absent"}, follow=True).content.decode()
    assert "absent was not tried" in posted
    oracle = operator.get("/runs/new/?recipe=quickstart-oracle").content.decode()
    assert "Tries of this model" not in oracle


def test_api_queues_tries_and_returns_their_results(operator: Client) -> None:
    overrides = {name: value for name, value in SMALL.items() if name != "policy.checkpoint"}
    body = json.dumps({"checkpoint": SMALL["policy.checkpoint"], "overrides": overrides})
    answer = operator.post("/api/v1/models/try", body, content_type="application/json")
    assert (answer.status_code, [run["state"] for run in answer.json()]) == (201, ["queued", "queued"])
    address = "/api/v1/models/tries?checkpoint=builtin:quickstart&prompt=compact_v1"
    assert {row["responses"] for row in operator.get(address).json()} == {None}
    for run in Run.objects.all():
        finish(run)
    native, xml = operator.get(address).json()
    assert (native["tool_format"], xml["tool_format"]) == ("native", "xml")
    assert (xml["call_rate"], xml["mean_tokens"], xml["tokens_per_s"]) == (0.0, 200.0, 85.0)
    assert (xml["cut_rate"], xml["peak_memory"]) == (3 / 17, 700 * 2**20)
    assert operator.get("/api/v1/models/tries?checkpoint=../etc").status_code == 422


def test_command_prints_a_column_for_each_format(monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(runs: Sequence[Run], *, as_json: bool) -> None:
        for run in runs:
            finish(run, valid_calls=9, responses_with_call=12)
            run.refresh_from_db()

    monkeypatch.setattr(commands, "watch", ended)
    options = ["--prompt", "compact_v1", "--set", "agent.max_context=1024", "--task", "a", "--task", "b"]
    lines = run_command("model", "try", "builtin:quickstart", *options).splitlines()
    config = Run.objects.latest("pk").config
    assert (config["collection"]["tasks"], config["dataset"]["limit"]) == (["a", "b"], 2)
    assert [line.split() for line in lines[:4]] == [
        ["native", "xml"], ["responses", "17", "17"], ["with", "a", "call", "71%", "71%"],
        ["with", "a", "valid", "call", "53%", "53%"],
    ]  # fmt: skip
    assert lines[-1] == "xml: 9 of 17 responses held a valid call: it can be trained in this format"
    Dataset.objects.all().delete()
    refused = command_result("model", "try", "builtin:quickstart")
    assert (refused.status, "trainyard run launch quickstart-dataset" in refused.errors) == (1, True)


def test_page_and_command_show_the_cards_of_models(
    operator: Client,
    tmp_path: Path,
    settings: Any,
    django_assert_max_num_queries: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings.TRAINYARD_HOME = tmp_path
    for name, card in {
        "smollm2-135m": {"model": "HuggingFaceTB/SmolLM2-135M-Instruct"},
        "mine": {"model": "<b>mine</b>" + "x" * 5000, "licence": "MIT", "quantisation": "Q8_0"},
        "broken": [],
    }.items():
        folder = tmp_path / "policies" / name
        folder.mkdir(parents=True)
        (folder / "provenance.json").write_text(json.dumps(card))
    run = tries.start(overrides=SMALL)[1]
    operator.get("/models/")  # the first request of a session writes it
    with django_assert_max_num_queries(6):
        page = operator.get("/models/").content.decode()
    assert "Apache-2.0" in page
    assert "Q4_1" in page
    assert "trainyard model fetch gemma-3-270m" in page
    assert "&lt;b&gt;mine&lt;/b&gt;" in page
    assert len(page) < 100_000
    assert f'href="/runs/{run.pk}/"' in page
    rows = json.loads(run_command("model", "list", "--json"))
    assert [row["name"] for row in rows if row["is_fetched"]] == ["smollm2-135m", "broken", "mine"]
    assert rows == operator.get("/api/v1/models").json()
    monkeypatch.setattr(policies, "_MAX_FOLDERS", 1)
    fetched = [model.name for model in policies.list_models() if model.is_fetched]
    assert fetched == ["smollm2-135m", "broken"], "the limit is for folders outside of the catalogue"
