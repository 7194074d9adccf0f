"""Tokens from the wire to the database: blocks and lists, hostile blocks, rows of earlier versions."""

from __future__ import annotations

import base64
import importlib
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.test import Client

from engine.events.token_block import MAX_TOKENS, encode
from engine.tokens import TOKEN_COLUMNS, TokenRecord
from tests.builders.event_builders import Stream, ref
from tests.builders.web_builders import launched, make_user, post, sign_in
from webapp.models import Event, TokenBlob, Trajectory
from webapp.permissions import Role
from webapp.services.ingestion import ingest
from webapp.services.run import attempts

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
HUGE = GOOD[:5] + (MAX_TOKENS + 1).to_bytes(4, "little") + GOOD[9:]
ZEROS = zlib.compress(bytes(1 << 28))
BOMB = GOOD[:10] + len(ZEROS).to_bytes(4, "little") + ZEROS
NAN = encode(TokenRecord(ids=[1, 2], mask=[0, 1], logprobs=[0.0, float("nan")]))
HOSTILE = {
    "cut": (text(GOOD[:-3]), "ends at byte"),
    "trailing": (text(GOOD + b"x"), "1 bytes follow the token block"),
    "other magic": (text(b"XXXX" + GOOD[4:]), "not a token block"),
    "later version": (text(GOOD[:4] + b"\x02" + GOOD[5:]), "version 2"),
    "too many tokens": (text(HUGE), "16777217 tokens"),
    "bomb": (text(BOMB), "cut or longer than 786432 bytes"),
    "not finite": (text(NAN), "log-probability of token 1 is nan"),
    "not base64": ("%%%", "not base64"),
    "empty": ("", "ends at byte 0"),
    "number": (5, "tokens are a int"),
    "lengths differ": (LISTS | {"ids": [1]}, "differ in length"),
    "column missing": ({k: v for k, v in LISTS.items() if k != "mask"}, "tokens are a dict"),
    "column null": (LISTS | {"mask": None}, "tokens are a dict"),
    "text in a list": (LISTS | {"ids": ["1", "2", "3", "4"]}, "holds <U1"),
    "beyond int32": (LISTS | {"ids": [1, 2, 3, 2**31]}, "2147483648"),
    "beyond int64": (LISTS | {"ids": [1, 2, 3, 2**80]}, "holds object"),
    "mask of 2": (LISTS | {"mask": [0, 1, 2, 0]}, "mask holds 0 to 2"),
    "nested": (LISTS | {"ids": [[1], [2], [3], [4]]}, "2 dimensions"),
    "beyond float32": (LISTS | {"logprobs": [0, -1e39, 0, 0]}, "-1e+39"),
    "beyond float64": (LISTS | {"logprobs": [0, "INF", 0, 0]}, "is -inf; expected a finite number"),
}


@pytest.mark.parametrize(("tokens", "message"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_tokens_are_refused_whole(tokens: Any, message: str) -> None:
    run, claim = launched()
    answer = engine_post(claim, finished(tokens).body().replace(b'"INF"', b"-1e999"))
    assert answer.status_code == 422
    assert message in answer.json()["detail"]
    run.refresh_from_db()
    assert run.last_seq == 0
    assert not Trajectory.objects.filter(run=run).exists()


def test_the_tokens_of_a_batch_are_bounded_but_not_those_of_a_spool(
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


def migrate(name: str) -> Any:
    executor = MigrationExecutor(connection)
    executor.migrate([("webapp", name)])
    return executor.loader.project_state([("webapp", name)]).apps.get_model("webapp", "TokenBlob")


@pytest.mark.django_db(transaction=True)
def test_rows_of_earlier_versions_are_converted_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    convert = importlib.import_module("webapp.migrations.0015_convert_tokens")
    monkeypatch.setattr(convert, "BATCH", 2)
    run, claim = launched()
    stream = finished(LISTS)
    for index in range(1, 5):
        stream.trajectory(ref(0, "a", index))
    post(claim, stream)
    first = TokenBlob.objects.get(trajectory__index=0).trajectory_id
    (latest,) = [name for app, name in MigrationExecutor(connection).loader.graph.leaf_nodes("webapp")]
    try:
        old = migrate("0013_sign_ins")
        row = old.objects.get(pk=first)
        assert bytes(row.ids) == np.array(LISTS["ids"], "<i4").tobytes()
        assert bytes(row.mask) == bytes(LISTS["mask"])
        assert bytes(row.logprobs) == np.array(LISTS["logprobs"], "<f4").tobytes()
        assert old.objects.count() == 5
        old.objects.filter(pk=first).update(logprobs=np.array([0, -np.inf, -17.25, 0], "<f4").tobytes())
        with monkeypatch.context() as interrupted:
            interrupted.setattr(convert, "encode", _fails_at_call(4))
            with pytest.raises(OSError, match="interrupted"):
                migrate(latest)
        migrate(latest)
        assert TokenBlob.objects.count() == 5
        record = TokenBlob.objects.get(pk=first).record
        assert record.logprobs.tolist() == [0.0, -np.inf, -17.25, 0.0]
        assert record.ids.tolist() == LISTS["ids"]
        other = TokenBlob.objects.exclude(pk=first)[0].record
        assert other.logprobs.tolist() == [0.0, -0.5, -0.25]
        assert set(TokenBlob.objects.values_list("samples", flat=True)) == {1}
    finally:
        migrate(latest)


def _fails_at_call(number: int) -> Any:
    calls = iter(range(1, number + 1))

    def encode_or_fail(record: TokenRecord) -> bytes:
        if next(calls) == number:
            raise OSError("interrupted")
        return encode(record)

    return encode_or_fail


def test_the_block_is_stored_without_another_compression() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT attstorage FROM pg_attribute WHERE attrelid = 'webapp_tokenblob'::regclass"
            " AND attname = 'data'"
        )
        assert cursor.fetchone() == ("e",)
