"""The page, API and command of a trained rollout's tokens."""

from __future__ import annotations

import base64
import json
import math

import numpy as np
import pytest
from django.test import Client

from engine.events.token_block import encode
from engine.events.token_trace import TraceRecord, encode_trace
from engine.tokens import TokenRecord
from tests.builders.commands import CommandFailedError, run_command
from tests.builders.web.event_builders import Stream, ref
from tests.builders.web.web_builders import launched, make_run, make_user, post, sign_in
from webapp.core.contexts.frame import trajectory_url
from webapp.core.permissions import Role
from webapp.models import Event, Run, TokenTrace, Trajectory

pytestmark = pytest.mark.django_db
LENGTH = 3200
WEIGHT = 1 / 1024


def tokens_of(length: int) -> TokenRecord:
    """Return a prompt token and sampled tokens of two steps."""
    half = length // 2
    return TokenRecord(
        ids=[1, *([7] * length)],
        mask=[0, *([1] * length)],
        logprobs=[0.0, *([-0.5] * length)],
        steps=[-1, *([0] * half), *([1] * (length - half))],
    )


def trained_stream(length: int, *, traced: int | None = None) -> Stream:
    stream = Stream()
    stream.started()
    block = base64.b64encode(encode(tokens_of(length))).decode()
    for index, reward in ((0, 1.0), (1, 0.0)):
        stream.trajectory(ref(0, "a", index), finish=False)
        stream.finished(ref(0, "a", index), steps=2, reward=reward, tokens=block)
    members = [
        {"index": index, "advantage": advantage, "baseline": 1 - reward, "loss_mask": True}
        for index, reward, advantage in ((0, 1.0, 1.0), (1, 0.0, -1.0))
    ]
    stream.add("group_finished", iteration=0, phase="train", task_id="a", members=members)
    count = length if traced is None else traced
    # The first token was raised past the clip's upper bound, the second one a little, the others not at all.
    logprobs = np.full(count, -0.5, np.float32)
    logprobs[:2] = -0.1, -0.4
    trace = TraceRecord(
        logprobs=logprobs,
        entropies=np.full(count, 0.25, np.float32),
        texts={7: "<b>hostile</b>"},
    )
    stream.add(
        "trajectory_trained",
        ref=ref(0, "a", 0),
        iteration=0,
        step=0,
        losses=[0.5, 0.25],
        weight=WEIGHT,
        tokens=base64.b64encode(encode_trace(trace)).decode(),
    )
    return stream


@pytest.fixture
def run() -> Run:
    started, claim = launched(make_run())
    post(claim, trained_stream(LENGTH))
    return started


@pytest.fixture
def reader() -> Client:
    make_user("reader", Role.VIEWER)
    client = Client()
    assert sign_in(client, "reader")
    return client


def first(run: Run) -> Trajectory:
    return Trajectory.objects.get(run=run, index=0)


def test_tokens_are_shown_a_window_at_a_time_without_markup_of_the_model(run: Run, reader: Client) -> None:
    trajectory = first(run)
    assert "tokens" not in Event.objects.get(run=run, type="trajectory_trained").payload
    page = f"/trajectories/{trajectory.pk}/tokens/"
    assert page in reader.get(trajectory_url(run.pk, "train", 0, "a", 0)).content.decode()
    text = reader.get(page).content.decode()
    assert len(text) < 300 << 10
    assert text.count("&lt;b&gt;hostile") == 1500
    assert "<b>hostile" not in text
    assert "3 200, 1 of them without a gradient" in text.replace("\u202f", " ").replace("\u00a0", " ")
    second = reader.get(page, {"step": "1"}).content.decode()
    assert f'id="t{LENGTH // 2}"' in second
    assert f'id="t{LENGTH // 2 - 1}"' not in second
    last = reader.get(page, {"start": "999999"}).content.decode()
    assert f'id="t{LENGTH - 1}"' in last
    for measure in ("ratio", "entropy", "mismatch", "nonsense"):
        assert reader.get(page, {"by": measure}).status_code == 200


def test_arithmetic_of_a_token_names_what_the_update_does_to_it(run: Run, reader: Client) -> None:
    page = f"/trajectories/{first(run).pk}/tokens/"
    assert "past the upper bound of the clip" in reader.get(f"{page}0/").content.decode()
    assert "raises its probability" in reader.get(f"{page}1/").content.decode()
    assert reader.get(f"{page}{LENGTH}/").status_code == 404
    assert "raises its probability" in reader.get(page, {"token": "1"}).content.decode()


def test_factors_of_the_api_multiply_up_to_the_loss(run: Run, reader: Client) -> None:
    trajectory = first(run)
    answer = reader.get(f"/api/v1/trajectories/{trajectory.pk}/token-trace", {"size": 3}).json()
    assert (answer["length"], answer["positions"], answer["clips"]) == (LENGTH, [1, 2, 3], ["high", "", ""])
    ratios = [math.exp(0.4), math.exp(0.1), 1.0]
    assert answer["ratios"] == pytest.approx(ratios, rel=1e-6)
    assert answer["token_losses"] == pytest.approx([-1.28, -ratios[1], -1.0], rel=1e-6)
    assert answer["slopes"] == pytest.approx([0.0, -ratios[1], -1.0], rel=1e-6)
    printed = json.loads(run_command("trajectories", "tokens", str(trajectory.pk), "-n", "3", "--json"))
    assert printed == answer
    assert "hostile" in run_command("trajectories", "tokens", str(trajectory.pk))


def test_a_rollout_without_a_trace_says_why(run: Run, reader: Client) -> None:
    other = Trajectory.objects.get(run=run, index=1)
    assert "trainer.traced_groups" in reader.get(f"/trajectories/{other.pk}/tokens/").content.decode()
    assert reader.get(f"/api/v1/trajectories/{other.pk}/token-trace").status_code == 404
    with pytest.raises(CommandFailedError, match="traced_groups"):
        run_command("trajectories", "tokens", str(other.pk))


def test_a_trace_that_does_not_fit_its_tokens_is_none(reader: Client) -> None:
    started, claim = launched(make_run())
    post(claim, trained_stream(20, traced=19))
    assert TokenTrace.objects.filter(trajectory__run=started).count() == 1
    assert reader.get(f"/trajectories/{first(started).pk}/tokens/").status_code == 200
    assert reader.get(f"/api/v1/trajectories/{first(started).pk}/token-trace").status_code == 404
