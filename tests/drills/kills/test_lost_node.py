"""Runs that lose their node and its disk resume from an object store, here a real S3 server."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.config.launcher import StorageConfig
from engine.storage.manifest import newest_manifest
from engine.storage.store import Store
from tests.fakes.ingest_server import ingest_server
from tests.fakes.s3_server import SECRET, s3_bucket
from tests.integration import toy_yard
from tests.integration.toy_records import (
    assert_same_state,
    expected_keys,
    of_type,
    weights,
)
from tests.integration.toy_yard import engine_process, events, finish, kill_when, make_run_dir


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """URL of an empty bucket of a running S3 server, whose credentials are in the environment."""
    with s3_bucket() as url:
        yield url


def test_run_resumed_after_node_loss_matches_an_uninterrupted_run(home: Path, bucket: str) -> None:
    plain = toy_yard.training(home)
    config = plain.model_copy(update={"storage": StorageConfig(url=bucket, interval_s=0.2)})
    whole = make_run_dir(home, "whole", plain)
    finish(whole)
    with ingest_server() as server:
        run_dir = make_run_dir(home, "lost", config, ingest_url=server.url)
        kill_when(
            run_dir,
            lambda: (
                bool(of_type(run_dir, "iteration_finished"))
                and any(event["type"] == "iteration_finished" for event in server.events)
            ),
        )
        shipped = list(server.events)
        shutil.rmtree(run_dir)
        server.epoch = 2
        run_dir = make_run_dir(home, "lost", config, ingest_url=server.url, epoch=2)
        finish(run_dir)
        assert server.events[: len(shipped)] == shipped
        assert server.events == events(run_dir)
        assert [event["seq"] for event in server.events] == list(range(1, len(server.events) + 1))
        assert Counter(server.terminal_keys()) == expected_keys(home)
        started = [event for event in server.events if event["type"] == "run_started"]
        assert started[1]["resumed_from"] is not None
    assert weights(run_dir) == weights(whole)
    assert_same_state(run_dir, whole)
    store = Store(bucket, "lost")
    manifest = newest_manifest(store)
    assert manifest is not None
    spool = b"".join(store.read(segment.object) for segment in manifest.spool)
    assert spool == (run_dir / "events.jsonl").read_bytes()
    unnamed = set(store.names("spool")) - manifest.objects
    assert len(unnamed) <= 1, "what the killed attempt had written and not named"
    assert all(name.startswith("spool/00001-") for name in unnamed)
    assert SECRET not in (run_dir / "engine.log").read_text()


def test_missing_bucket_fails_the_run_and_names_the_setting(home: Path, bucket: str) -> None:
    storage = StorageConfig(url=bucket.replace("yard", "no-such-bucket"))
    config = toy_yard.training(home).model_copy(update={"storage": storage})
    run_dir = make_run_dir(home, "no-store", config)
    with engine_process(run_dir) as process:
        assert process.wait(timeout=120) == 1
    (last,) = events(run_dir)
    assert last["reason"].startswith("storage.url: cannot write probe-")
    assert "no-such-bucket" in last["reason"]
