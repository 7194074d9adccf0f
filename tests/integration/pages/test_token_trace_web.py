"""The page, API and command of a trained rollout's tokens."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

import numpy as np
import pytest
from django.test import Client

from engine.algorithms.arithmetic import TokenTerms
from engine.events.token_block import encode
from engine.events.token_trace import TraceRecord, encode_trace
from engine.tokens import TokenRecord
from tests.builders.commands import CommandFailedError, run_command
from tests.builders.web.event_builders import Stream, ref
from tests.builders.web.web_builders import launched, make_run, make_user, post, relaunched, sign_in
from webapp.core.contexts.frame import trajectory_url
from webapp.core.permissions import Role
from webapp.models import Event, Run, TokenTrace, Trajectory
from webapp.rollouts.contexts.token_trace import verdict_of

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


def trained_stream(
    length: int, *, traced: int | None = None, text: str = "<b>hostile</b>", weight: float = WEIGHT
) -> Stream:
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
        texts={7: text},
    )
    stream.add(
        "trajectory_trained",
        ref=ref(0, "a", 0),
        iteration=0,
        step=0,
        losses=[0.5, 0.25],
        weight=weight,
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


def test_each_step_has_a_strip_of_its_tokens(run: Run, reader: Client) -> None:
    trajectory = first(run)
    page = trajectory_url(run.pk, "train", 0, "a", 0)
    address = f"/trajectories/{trajectory.pk}/tokens/strips/"
    assert address in reader.get(page).content.decode()
    strips = reader.get(address).json()
    steps = strips["steps"]
    assert strips["by"] == "gradient"
    assert [(strip["step"], strip["tokens"]) for strip in steps] == [(0, LENGTH // 2), (1, LENGTH // 2)]
    assert [strip["without"] for strip in steps] == [1, 0]
    assert steps[0]["above"] == LENGTH // 2 - 1
    assert all(len(strip["cells"]) == 160 for strip in steps)
    assert set(steps[1]["cells"]) <= set("1234")
    assert reader.get(address, {"by": "ratio"}).json()["steps"][0]["cells"][0] == "4"
    other = Trajectory.objects.get(run=run, index=1)
    assert reader.get(f"/trajectories/{other.pk}/tokens/strips/").status_code == 404
    assert "strips" not in reader.get(trajectory_url(run.pk, "train", 0, "a", 1)).content.decode()


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


def test_texts_that_would_spell_a_secret_are_not_shown(reader: Client) -> None:
    started, claim = launched(make_run())
    post(claim, trained_stream(2, text=f"hf_{'a1' * 12}"))
    answer = reader.get(f"/api/v1/trajectories/{first(started).pk}/token-trace").json()
    assert answer["texts"] == ["[7]", "[7]"]
    assert "hf_" not in reader.get(f"/trajectories/{first(started).pk}/tokens/").content.decode()


def test_numbers_of_another_program_that_overflow_are_no_trace(reader: Client) -> None:
    started, claim = launched(make_run())
    post(claim, trained_stream(3, weight=1.7e308))
    assert reader.get(f"/trajectories/{first(started).pk}/tokens/").status_code == 200
    assert reader.get(f"/api/v1/trajectories/{first(started).pk}/token-trace").status_code == 404


def test_a_repeated_update_or_rollout_has_no_earlier_trace() -> None:
    started, claim = launched(make_run())
    stream = trained_stream(20)
    post(claim, stream)
    newer = relaunched(started, claim)
    again = Stream(epoch=newer.epoch, first_seq=stream.next_seq)
    again.started(resumed_from=0)
    post(newer, again)
    assert not TokenTrace.objects.exists()


def terms_of(**changes: float | str) -> TokenTerms:
    values: dict[str, Any] = {
        "ratio": 1.0, "clip": "", "surrogate": -1.0, "correction": 1.0, "kl": 0.0, "entropy": 0.0,
        "surrogate_slope": -1.0, "kl_slope": 0.0,
    }  # fmt: skip
    return TokenTerms(**values | changes)


@pytest.mark.parametrize(
    ("terms", "advantage", "expected"),
    [
        (terms_of(), 1.0, "raises its probability: the rollout's reward is above"),
        (terms_of(surrogate_slope=1.0), -1.0, "lowers its probability: the rollout's reward is below"),
        (terms_of(kl_slope=3.0), 1.0, "KL term outweighs the advantage: the rollout's reward is above"),
        (terms_of(surrogate_slope=0.0, kl_slope=0.5), 0.0, "lowers its probability by the KL term alone"),
        (terms_of(surrogate_slope=0.0, clip="high", kl_slope=-0.5), 1.0, "raises its probability by the KL"),
        (terms_of(surrogate_slope=0.0, entropy=-0.1), 0.0, "No gradient but that of its entropy"),
        (terms_of(surrogate_slope=0.0, correction=0.0), 1.0, "importance correction excludes it"),
    ],
    ids=["up", "down", "outweighed", "KL alone", "clipped with KL", "entropy", "excluded"],
)
def test_verdict_of_a_token_names_the_term_that_moves_it(
    terms: TokenTerms, advantage: float, expected: str
) -> None:
    assert expected in verdict_of(-terms.slope, advantage, terms)
