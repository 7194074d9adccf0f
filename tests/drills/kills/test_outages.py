"""Redis hangs or is killed: event ingestion does not block, and subscriptions recover."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from channels.layers import channel_layers, get_channel_layer

from tests.builders.web.event_builders import Stream
from tests.builders.web.web_builders import launched, post
from tests.ports import reserved_port
from webapp.core.services.notifications import RUNS_GROUP, _send_all
from webapp.supervisor.embedded import EmbeddedRedis

pytestmark = pytest.mark.django_db


@pytest.fixture
def own_redis(settings: Any, tmp_path: Path) -> Iterator[EmbeddedRedis]:
    """A private Redis server behind the channel layer."""
    server = EmbeddedRedis(tmp_path / "redis", port=reserved_port(), password="pw", durable=False)
    server.start()
    layer = settings.CHANNEL_LAYERS["default"]
    config = {**layer["CONFIG"], "hosts": [server.url]}
    settings.CHANNEL_LAYERS = {"default": {**layer, "CONFIG": config}}
    channel_layers.backends.clear()
    yield server
    channel_layers.backends.clear()
    server.stop()


def test_event_ingestion_does_not_block_on_a_hanging_redis(
    own_redis: EmbeddedRedis, django_capture_on_commit_callbacks: Any, caplog: pytest.LogCaptureFixture
) -> None:
    run, claim = launched()
    stream = Stream()
    stream.started()
    assert own_redis.process is not None
    own_redis.process.send_signal(signal.SIGSTOP)
    try:
        with django_capture_on_commit_callbacks(execute=True):
            assert post(claim, stream).acked_seq == 1
    finally:
        own_redis.process.send_signal(signal.SIGCONT)
    assert f"watchers of run.{run.pk} were not told" in caplog.text


def kill(server: EmbeddedRedis) -> None:
    assert server.process is not None
    server.process.kill()
    server.process.wait()


async def test_run_subscriptions_recover_after_a_kill_of_redis(own_redis: EmbeddedRedis) -> None:
    logging.getLogger("channels_redis.pubsub").setLevel(logging.CRITICAL)
    layer = get_channel_layer()
    assert layer is not None
    channel = await layer.new_channel()
    await layer.group_add(RUNS_GROUP, channel)
    receiving = asyncio.create_task(layer.receive(channel))
    await _send_all({"type": "run.changed", "run_id": 1}, [RUNS_GROUP])
    assert (await asyncio.wait_for(receiving, 60))["run_id"] == 1
    kill(own_redis)
    await asyncio.to_thread(own_redis.start)
    receiving = asyncio.create_task(layer.receive(channel))
    for _ in range(600):
        await _send_all({"type": "run.changed", "run_id": 2}, [RUNS_GROUP])
        if (await asyncio.wait([receiving], timeout=0.1))[0]:
            break
    assert receiving.done(), "the subscription did not come back"
    assert receiving.result()["run_id"] == 2
    await layer.flush()
