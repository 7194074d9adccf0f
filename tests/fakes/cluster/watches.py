"""The watch stream: changes as a selector sees them, bookmarks, and its end."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator

from tests.fakes.cluster.calls import Call
from tests.fakes.cluster.errors import ApiError
from tests.fakes.cluster.selectors import Match, parse
from tests.fakes.cluster.store import Change, Record, Store

_DEFAULT_TIMEOUT_S = 1800


def line(kind: str, data: bytes) -> bytes:
    """One event of the stream."""
    return b'{"type":"' + kind.encode() + b'","object":' + data + b"}\n"


def _bookmark(call: Call, version: int) -> bytes:
    meta = {"resourceVersion": str(version), "creationTimestamp": None}
    obj = {"kind": call.resource.kind, "apiVersion": call.resource.api_version, "metadata": meta}
    return line("BOOKMARK", json.dumps(obj).encode())


def _seen(change: Change, match: Match) -> tuple[str, Record] | None:
    """What a selecting watcher is told: leaving the selection is a deletion, entering it an addition."""
    before = change.old is not None and match(change.old.obj)
    if change.type != "DELETED" and match(change.new.obj):
        return ("MODIFIED" if before else "ADDED"), change.new
    return ("DELETED", change.new) if before else None


async def lines(store: Store, call: Call, bookmark_every_s: float) -> AsyncIterator[bytes]:
    """What came after the asked version, until the watch's ``timeoutSeconds``; an ERROR event 410 where that
    is forgotten."""
    resource, bookmarks = call.resource, call.flag("allowWatchBookmarks")
    ends = time.monotonic() + (call.number("timeoutSeconds") or _DEFAULT_TIMEOUT_S)
    try:
        match = parse(call)
        position = store.position(resource, call.number("resourceVersion"))
        while (left := ends - time.monotonic()) > 0:
            wait = min(left, bookmark_every_s) if bookmarks else left
            changes, position = await store.changes(resource, position, wait)
            for change in changes:
                seen = _seen(change, match)
                if seen is not None and change.key[0] == call.namespace:
                    yield line(seen[0], seen[1].data)
            if not changes and bookmarks:
                yield _bookmark(call, store.version)
    except ApiError as error:
        yield line("ERROR", json.dumps(error.status()).encode())
