"""Tells browsers that something changed: after commit, and never failing the writer.

The message carries no data: a consumer reads what is new from Postgres. A lost message (Redis away)
costs freshness only; the next one, or a reload, brings everything.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import redis.exceptions
from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from django.db import transaction

log = logging.getLogger(__name__)

RUNS_GROUP = "runs"
"""Hears about every run; overview and run list subscribe to it."""


TIMEOUT_S = 5.0
"""A server that hangs keeps the writer waiting for so long."""


def run_group(run_id: int) -> str:
    """Channels group of one run's page."""
    return f"run.{run_id}"


def run_changed(run_id: int, seq: int) -> None:
    """After commit, tell the run's watchers that events up to ``seq`` are stored."""
    message = {"type": "run.changed", "run_id": run_id, "seq": seq}
    transaction.on_commit(lambda: _send(message, run_group(run_id), RUNS_GROUP))


def pools_changed() -> None:
    """After commit, tell the pages about all runs that something about sandboxes changed."""
    transaction.on_commit(lambda: _send({"type": "run.changed"}, RUNS_GROUP))


def _send(message: dict[str, object], *groups: str) -> None:
    try:
        async_to_sync(_send_all)(message, groups)
    except (redis.exceptions.RedisError, OSError) as error:
        log.warning("watchers of %s were not told: %s", groups[0], error or type(error).__name__)


async def _send_all(message: dict[str, object], groups: Sequence[str]) -> None:
    layer = get_channel_layer()
    if layer is None:
        return
    async with asyncio.timeout(TIMEOUT_S):
        for group in groups:
            await layer.group_send(group, message)
