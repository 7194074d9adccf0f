"""Stored tokens of trajectories: blocks and lists, invalid tokens, limits."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from django.test import Client

from engine.events.token_block import encode
from engine.tokens import TOKEN_COLUMNS, TokenRecord
from tests.builders.web.event_builders import Stream, ref
from tests.builders.web.web_builders import launched, make_user, sign_in
from webapp.core.permissions import Role
from webapp.ingestion.services import ingest
from webapp.models import Event, TokenBlob, Trajectory
from webapp.runs.services import attempts

pytestmark = pytest.mark.django_db
RECORD = TokenRecord(
    ids=[7, 151_643, 3, 4],
    mask=[0, 1, 1, 0],
    logprobs=[0.0, -0.1, -17.25, 0.0],
    versions=[-1, 3, 4, -1],
    steps=[-1, 0, 0, 0],
)
LISTS = {name: getattr(RECORD, name).tolist() for name in TOKEN_COLUMNS} | {"mask": [0, 1, 1, 0]}


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def finished(tokens: Any, index: int = 0) -> Stream:
    stream = Stream()
    stream.started()
    stream.trajectory(ref(0, "a", index), finish=False)
    stream.finished(ref(0, "a", index), steps=2)
    event = json.loads(stream.lines[-1]) | {"tokens": tokens}
    stream.lines[-1] = json.dumps(event).encode()
    return stream


def engine_post(claim: attempts.Claim, body: bytes) -> Any:
    return Client().post(
        f"/api/v1/runs/{claim.run_id}/events", body, content_type="application/x-ndjson",
        headers={"Authorization": f"Bearer {claim.token}"},
    )  # fmt: skip


@pytest.mark.parametrize("tokens", [LISTS, text(encode(RECORD))], ids=["lists", "block"])
def test_tokens_are_stored_once_as_a_block_and_read_by_the_api(tokens: Any) -> None:
    run, claim = launched()
    assert engine_post(claim, finished(tokens).body()).status_code == 200
    blob = TokenBlob.objects.get(trajectory__run=run)
    assert (blob.length, blob.samples, blob.record) == (4, 1, RECORD)
    assert "tokens" not in Event.objects.get(run=run, type="trajectory_finished").payload
    make_user("reader", Role.VIEWER)
    reader = Client()
    assert sign_in(reader, "reader")
    url = f"/api/v1/trajectories/{blob.trajectory_id}/tokens"
    window = json.loads(reader.get(url, {"start": 1, "size": 2}).content)
    assert window["logprobs"][0] == float(np.float32(-0.1))
    assert window == {
        "samples": [0], "length": 4, "start": 1, "ids": [151_643, 3], "mask": [1, 1], "versions": [3, 4],
        "logprobs": RECORD.logprobs[1:3].tolist(), "steps": [0, 0],
    }  # fmt: skip
    assert b'"mask": [1, 1]' in reader.get(url, {"start": 1, "size": 2}).content
    assert reader.get(url, {"start": 9}).json()["ids"] == []


GOOD = encode(RECORD)
NAN = encode(TokenRecord(ids=[1, 2], mask=[0, 1], logprobs=[0.0, float("nan")]))
HOSTILE: tuple[tuple[Any, str], ...] = (
    (text(GOOD[:-3]), "ends at byte"),
    (text(NAN), "log-probability of token 1 is nan"),
    ("%%%", "not base64"),
    (5, "tokens are a int"),
    (LISTS | {"ids": [1]}, "differ in length"),
    (LISTS | {"ids": [1, 2, 3, 2**80]}, "holds object"),
    (LISTS | {"mask": [0, 1, 2, 0]}, "mask holds 0 to 2"),
    (LISTS | {"logprobs": [0, "INF", 0, 0]}, "-1e999 is no number that can be stored"),
)


def test_invalid_tokens_are_refused_with_their_whole_batch() -> None:
    run, claim = launched()
    for tokens, message in HOSTILE:
        answer = engine_post(claim, finished(tokens).body().replace(b'"INF"', b"-1e999"))
        assert answer.status_code == 422
        assert message in answer.json()["detail"]
    run.refresh_from_db()
    assert run.last_seq == 0
    assert not Trajectory.objects.filter(run=run).exists()


def test_tokens_are_limited_in_batches_but_not_in_spools(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run, claim = launched()
    stream = finished(text(encode(RECORD)))
    stream.trajectory(ref(0, "a", 1))
    monkeypatch.setattr(ingest, "MAX_TOKENS", 6)
    refused = engine_post(claim, stream.body())
    assert refused.status_code == 413
    assert refused.json()["detail"] == "a batch may have 6 tokens; send fewer events"
    assert engine_post(claim, stream.body(0, 4)).status_code == 200
    spool = tmp_path / "events.jsonl"
    spool.write_bytes(stream.body())
    ingest.ingest_spool(run_id=run.pk, path=spool)
    assert TokenBlob.objects.filter(trajectory__run=run).count() == 2
