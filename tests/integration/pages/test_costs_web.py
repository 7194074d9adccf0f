"""Costs and cached tokens of chat policies, and trajectories without token ids, on pages and by API."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from tests.builders.web.event_builders import Stream, ref
from tests.builders.web.web_builders import launched, make_user, post, snapshot
from webapp.core.permissions import Role
from webapp.models import Run, Step, Trajectory
from webapp.runs.services import attempts
from webapp.templatetags.yard import usd

pytestmark = pytest.mark.django_db
STATE = {"tool_calls": [{"id": "x", "extra_content": {"google": {"thought_signature": "c2lnbg=="}}}]}


def chat_stream(epoch: int = 1) -> Stream:
    """Return the events of two rollouts: one fully reported, one of an endpoint that reports little."""
    stream = Stream(epoch=epoch)
    stream.started()
    stream.add("trajectory_started", ref=ref(0, "a", 0))
    stream.step(ref(0, "a", 0), 0, prompt_tokens=900, cached_tokens=0, cost=0.004)
    stream.step(ref(0, "a", 0), 1, prompt_tokens=1200, cached_tokens=768, cost=0.002, provider_state=STATE)
    stream.add(
        "trajectory_finished", ref=ref(0, "a", 0), termination="submitted", verdict="passed", reward=1.0,
        num_steps=2, prompt_tokens=900, cached_tokens=768, generated_tokens=14, thinking_tokens=7, cost=0.006,
    )  # fmt: skip
    stream.add("trajectory_started", ref=ref(0, "a", 1))
    stream.step(ref(0, "a", 1), 0, thinking_tokens=None, cost=0.25, cached_tokens=100)
    stream.step(ref(0, "a", 1), 1, thinking_tokens=5, cost=None)
    return stream


@pytest.fixture
def client() -> Client:
    client = Client()
    client.force_login(make_user("ada", Role.OPERATOR))
    return client


def posted(stream: Stream, run: Run | None = None) -> tuple[Run, attempts.Claim]:
    run, claim = launched(run)
    post(claim, stream)
    return run, claim


def test_costs_are_stored_and_summed_while_rollouts_run() -> None:
    run, _ = posted(chat_stream())
    done, live = Trajectory.objects.filter(run=run).order_by("index")
    assert (done.cost, done.cached_tokens, done.thinking_tokens) == (0.006, 768, 7)
    assert (live.state, live.cost, live.cached_tokens) == ("running", 0.25, 100)
    assert live.thinking_tokens is None
    assert list(Step.objects.filter(trajectory=live).values_list("thinking_tokens", "cost")) == [
        (None, 0.25),
        (5, None),
    ]


def test_stored_costs_do_not_depend_on_batches() -> None:
    whole, _ = posted(chat_stream())
    run, claim = launched()
    stream = chat_stream()
    for number in range(len(stream.lines)):
        post(claim, stream, number, number + 1)
    assert snapshot(run) == snapshot(whole)


def test_api_returns_costs_and_whether_token_ids_exist(client: Client) -> None:
    stream = chat_stream()
    stream.trajectory(ref(0, "b", 0))
    run, _ = posted(stream)
    detail = client.get(f"/api/v1/runs/{run.pk}").json()
    assert (detail["cost"], detail["cached_tokens"]) == (pytest.approx(0.256), 868)
    items = client.get(f"/api/v1/runs/{run.pk}/trajectories").json()["items"]
    rows = [(t["task_key"], t["index"], t["cost"], t["thinking_tokens"], t["has_token_ids"]) for t in items]
    assert sorted(rows, key=lambda row: row[:2]) == [
        ("a", 0, 0.006, 7, False),
        ("a", 1, 0.25, None, False),
        ("b", 0, None, 7, True),
    ]
    first = client.get(f"/api/v1/trajectories/{items[-1]['id']}").json()
    assert [step["cost"] for step in first["steps"]] == [0.004, 0.002]
    assert [step["cached_tokens"] for step in first["steps"]] == [0, 768]
    assert [step["provider_state"] for step in first["steps"]] == [None, STATE]
    assert first["has_token_ids"] is False


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"), (0, "$0.00"), (0.0, "$0.00"), (12.345, "$12.35"), (0.25, "$0.25"), (0.999, "$1.00"),
        (0.0123, "$0.012"), (0.006, "$0.0060"), (0.00000012, "<$0.000001"), (1234.5, "$1\u202f234.50"),
    ],
)  # fmt: skip
def test_costs_are_formatted_in_dollars(value: Any, shown: str) -> None:
    assert usd(value) == shown
