"""Form of a collection: it creates the same run as the API and the command."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client

from tests.builders.commands import run_command
from tests.builders.web.event_builders import Stream
from tests.builders.web.html_regions import form_values
from tests.builders.web.web_builders import launched, make_user, post
from webapp.core.permissions import Role
from webapp.endpoints.services import endpoints
from webapp.models import Dataset, Run, Task

pytestmark = pytest.mark.django_db
FORM = "/runs/new/?recipe=collect&dataset.name=tasks"


@pytest.fixture(autouse=True)
def dataset() -> Dataset:
    made = Dataset.objects.create(name="tasks", splits={"train": 1, "heldout": 1})
    Task.objects.create(dataset=made, key="a", instance_id="a", split="train", image="local:a")
    return made


@pytest.fixture
def operator(client: Client) -> Client:
    client.force_login(make_user("olga", Role.OPERATOR))
    return client


def rerender(client: Client, form: dict[str, str], changes: dict[str, str]) -> dict[str, str]:
    """Return the form rendered again after changes to fields on which others depend."""
    shown = client.post("/runs/new/", form | changes | {"then": "check"}).content.decode()
    return form_values(shown, "run-form")


def fill_form(client: Client, changes: dict[str, str]) -> dict[str, str]:
    """Return the form of a collection on ``tasks`` with changes."""
    form = form_values(client.get(FORM).content.decode(), "run-form")
    return rerender(client, form, changes) | changes


def create_run(client: Client, values: dict[str, str]) -> Run:
    answer = client.post("/runs/new/", values | {"then": "start"})
    assert answer.status_code == 302, answer.content.decode()
    return Run.objects.latest("pk")


def config_by_command(*arguments: str) -> dict[str, Any]:
    run_command("collect", "tasks", *arguments)
    return Run.objects.latest("pk").config


def config_by_api(client: Client, **overrides: Any) -> dict[str, Any]:
    body = json.dumps({"recipe": "collect", "overrides": overrides})
    answer = client.post("/api/v1/runs", body, content_type="application/json")
    assert answer.status_code == 201, answer.content
    config: dict[str, Any] = answer.json()["config"]
    return config


def test_page_command_and_api_create_the_same_collection_of_an_endpoint(operator: Client) -> None:
    endpoints.save(name="lab", address="https://lab.example/v1", models="qwen-coder, other-*")
    form = fill_form(operator, {"policy.type": "endpoint"})
    assert form["policy.endpoint"] == "lab"
    form |= {
        "policy.model": "qwen-coder", "policy.temperature": "0.5", "rollout.group_size": "4",
        "rollout.max_concurrent": "16", "dataset.split": "heldout", "collection.start_index": "1",
        "policy.input_price": "2", "policy.output_price": "8", "policy.spend_limit": "5",
    }  # fmt: skip
    run = create_run(operator, form)
    assert (run.kind, run.state, run.recipe, run.name) == (
        "rollout",
        "queued",
        "collect",
        "qwen-coder on tasks",
    )
    policy = {name: run.config["policy"][name] for name in ("type", "endpoint", "model", "spend_limit")}
    assert policy == {"type": "endpoint", "endpoint": "lab", "model": "qwen-coder", "spend_limit": 5.0}
    assert run.config["agent"]["tool_format"] == "native"
    assert run.config["sandbox"]["backend"] == "local"
    prices = {"policy.input_price": 2, "policy.output_price": 8, "policy.spend_limit": 5}
    assert run.config == config_by_command(
        *("--endpoint", "lab", "--model", "qwen-coder", "--temperature", "0.5", "--samples", "4"),
        *("--concurrency", "16", "--split", "heldout", "--start", "1"),
        *(text for name, value in prices.items() for text in ("--set", f"{name}={value}")),
    )
    assert run.config == config_by_api(
        operator,
        **{
            "name": "qwen-coder on tasks", "dataset.name": "tasks", "dataset.split": "heldout",
            "policy.type": "endpoint", "policy.endpoint": "lab", "policy.model": "qwen-coder",
            "policy.temperature": 0.5, "rollout.group_size": 4, "rollout.max_concurrent": 16,
            "collection.start_index": 1, "agent.tool_format": "native", "sandbox.backend": "local", **prices,
        },
    )  # fmt: skip


def test_skip_setting_selects_earlier_collections_of_the_same_model(operator: Client) -> None:
    first = create_run(operator, fill_form(operator, {"policy.type": "oracle"}))
    create_run(operator, fill_form(operator, {"policy.type": "noop"}))
    stream = Stream()
    stream.add("run_started", host="h", pid=1, rollouts_kept=0)
    Run.objects.filter(pk=first.pk).update(state="draft")
    first.refresh_from_db()
    post(launched(first)[1], stream)
    form = fill_form(operator, {"policy.type": "oracle", "collection.skip": "finished"})
    assert form["collection.skip_runs"].split() == [str(first.pk)]
    assert create_run(operator, form).config == config_by_command("--model", "oracle", "--skip", "finished")


def test_derived_settings_follow_until_a_user_changes_them(operator: Client) -> None:
    Dataset.objects.create(name="remote")
    form = fill_form(operator, {"policy.type": "oracle"})
    assert (form["name"], form["sandbox.backend"]) == ("oracle on tasks", "local")
    form = rerender(operator, form, {"policy.type": "noop", "dataset.name": "remote"})
    assert (form["name"], form["sandbox.backend"]) == ("noop on remote", "docker")
    form = rerender(operator, form, {"name": "mine", "dataset.name": "tasks"})
    assert (form["name"], form["sandbox.backend"]) == ("mine", "local")
    endpoints.save(name="lab", address="https://lab.example/v1")
    form = rerender(operator, form, {"policy.type": "endpoint"})
    assert form["agent.tool_format"] == "native"
    form = rerender(operator, form, {"agent.tool_format": "xml", "policy.model": "m"})
    assert rerender(operator, form, {})["agent.tool_format"] == "xml"
    form = rerender(operator, form, {"agent.tool_format": "native"})
    assert rerender(operator, form, {"policy.type": "oracle"})["agent.tool_format"] == "xml"
