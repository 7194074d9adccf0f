"""The watch stream: initial objects, changes as a selector sees them, bookmarks, and its end."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator

from tests.fakes.cluster.calls import Call
from tests.fakes.cluster.errors import ApiError
from tests.fakes.cluster.resources import Object
from tests.fakes.cluster.selectors import Match, parse
from tests.fakes.cluster.store import Change, Record, Store

_DEFAULT_TIMEOUT_S = 1800.0


def line(kind: str, data: bytes) -> bytes:
    """One event of the stream."""
    return b'{"type":"' + kind.encode() + b'","object":' + data + b"}\n"


def _bookmark(call: Call, version: int, *, initial_end: bool = False) -> bytes:
    meta: Object = {"resourceVersion": str(version), "creationTimestamp": None}
    if initial_end:
        meta["annotations"] = {"k8s.io/initial-events-end": "true"}
    obj = {"kind": call.resource.kind, "apiVersion": call.resource.api_version, "metadata": meta}
    return line("BOOKMARK", json.dumps(obj).encode())


def _seen(change: Change, match: Match | None) -> tuple[str, Record] | None:
    """What a selecting watcher is told: leaving the selection is a deletion, entering it an addition."""
    if match is None:
        return change.type, change.new
    before = change.old is not None and match(change.old.obj)
    if change.type == "DELETED":
        return ("DELETED", change.new) if before else None
    after = match(change.new.obj)
    if after:
        return ("MODIFIED" if before else "ADDED"), change.new
    return ("DELETED", change.new) if before else None


def stream(store: Store, call: Call, bookmark_every_s: float) -> AsyncIterator[bytes]:
    """The lines of one watch until its ``timeoutSeconds``.

    Without ``resourceVersion`` (or with 0) it begins with every object as ADDED; else with what came after
    that version, or with an ERROR event 410 where that is forgotten.

    Raises:
        ApiError: 400 for a selector or parameter that cannot be read.
    """
    return _lines(store, call, _selected(call), call.version(), bookmark_every_s)


async def _lines(
    store: Store, call: Call, match: Match | None, version: int | None, bookmark_every_s: float
) -> AsyncIterator[bytes]:
    resource = call.resource
    ends = time.monotonic() + (call.number("timeoutSeconds") or _DEFAULT_TIMEOUT_S)
    bookmarks = call.flag("allowWatchBookmarks")
    try:
        if version:
            position = store.position(resource, version)
        else:
            position = store.position(resource)
            for record in store.all(resource, call.namespace):
                if match is None or match(record.obj):
                    yield line("ADDED", record.data)
        if call.flag("sendInitialEvents"):
            yield _bookmark(call, store.version, initial_end=True)
        while (left := ends - time.monotonic()) > 0:
            wait = min(left, bookmark_every_s) if bookmarks else left
            changes, position = await store.changes(resource, position, wait)
            for change in changes:
                if call.namespace and change.key[0] != call.namespace:
                    continue
                seen = _seen(change, match)
                if seen is not None:
                    yield line(seen[0], seen[1].data)
            if not changes and bookmarks:
                yield _bookmark(call, store.version)
    except ApiError as error:
        yield line("ERROR", json.dumps(error.status()).encode())


def _selected(call: Call) -> Match | None:
    fields = call.query.get("fieldSelector", "")
    if call.name:
        fields = f"metadata.name={call.name}"
    return parse(call.resource, call.query.get("labelSelector", ""), fields)
