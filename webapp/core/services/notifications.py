"""Change notifications to browsers, sent after commit; a failure never fails the writer.

A message names the changed areas and contains no data: the web server reads the data from Postgres. A lost
message (Redis is down) only delays the update by seconds: ``webapp.live.watch`` detects the change.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import redis.exceptions
from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from django.db import transaction

log = logging.getLogger(__name__)

RUNS_GROUP = "runs"
"""Channels group for changes of every run, used by the overview and the run list."""
TIMEOUT_S = 5.0
"""Maximum time for which an unresponsive Redis server delays the writer, seconds."""


def run_group(run_id: int) -> str:
    """Return the Channels group of one run's pages."""
    return f"run.{run_id}"


def run_changed(run_id: int, seq: int, changes: Mapping[str, Any] | None = None) -> None:
    """Notify the pages of a run after commit that events up to ``seq`` are stored.

    Args:
        run_id: the run.
        seq: its last event.
        changes: the changed areas (``ingestion.changes.Changes.message``); None: any area may have changed.
    """
    message = {"type": "run.changed", "run_id": run_id, "seq": seq, "changes": changes}
    transaction.on_commit(lambda: _send(message, run_group(run_id), RUNS_GROUP))


def pools_changed() -> None:
    """Notify the pages that list all runs after commit that sandboxes changed."""
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
            await layer.group_send(group, {**message, "group": group})
