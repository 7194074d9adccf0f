"""What etcd and the watch cache are to a real API server: objects, one version counter, and the log of
changes.

Objects are immutable once stored: a write brings a new one. Every resource has its own log, so that a watch
sees only its changes and a list can be answered as of an older version. Logs are never compacted.
"""

from __future__ import annotations

import asyncio
import bisect
import json
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.fakes.cluster.api.resources import RESOURCES, Object, Resource

Key = tuple[str, str]
"""Namespace (empty for cluster-wide objects) and name."""


class Record:
    """An object at one version, with its JSON made once however many clients read it."""

    __slots__ = ("_data", "obj")

    def __init__(self, obj: Object) -> None:
        self.obj = obj
        self._data: bytes | None = None

    @property
    def data(self) -> bytes:
        """The object as JSON."""
        if self._data is None:
            self._data = json.dumps(self.obj, separators=(",", ":")).encode()
        return self._data

    @property
    def version(self) -> int:
        """Its resourceVersion."""
        return int(self.obj["metadata"]["resourceVersion"])

    @property
    def uid(self) -> str:
        """Its uid."""
        uid: str = self.obj["metadata"]["uid"]
        return uid

    def copy(self) -> Object:
        """The object for changing."""
        copied: Object = json.loads(self.data)
        return copied


@dataclass(frozen=True, slots=True)
class Change:
    """One write: ``old`` is None for the first, ``new`` of a deletion is the last state under a new
    version."""

    type: str
    version: int
    key: Key
    old: Record | None
    new: Record


class _Log:
    """The changes of one resource, oldest first."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.waiting: set[asyncio.Future[None]] = set()

    def append(self, change: Change) -> None:
        self.changes.append(change)
        for future in self.waiting:
            if not future.done():
                future.set_result(None)
        self.waiting.clear()

    def position(self, version: int) -> int:
        """Return the position of the first change after ``version``."""
        return bisect.bisect_right(self.changes, version, key=lambda change: change.version)


class Store:
    """All objects of the cluster. Not thread-safe: it belongs to the cluster's event loop."""

    def __init__(self) -> None:
        self.version = 1
        self._objects: dict[Resource, dict[Key, Record]] = {one: {} for one in RESOURCES}
        self._logs = {one: _Log() for one in RESOURCES}
        self._dependents: dict[str, dict[tuple[Resource, Key], None]] = {}
        self._uids: dict[str, tuple[Resource, Key]] = {}

    def get(self, resource: Resource, namespace: str, name: str) -> Record | None:
        """One object."""
        return self._objects[resource].get((namespace, name))

    def all(self, resource: Resource, namespace: str = "") -> Iterator[Record]:
        """Every object, of one namespace or of all; safe against changes meanwhile."""
        for key, record in list(self._objects[resource].items()):
            if not namespace or key[0] == namespace:
                yield record

    def by_uid(self, uid: str) -> tuple[Resource, Record] | None:
        """The object of that uid."""
        found = self._uids.get(uid)
        return (found[0], self._objects[found[0]][found[1]]) if found else None

    def dependents(self, uid: str) -> list[tuple[Resource, Record]]:
        """Objects that name ``uid`` as an owner."""
        found = self._dependents.get(uid, {})
        return [(resource, self._objects[resource][key]) for resource, key in found]

    def put(self, resource: Resource, obj: Object) -> Record:
        """Write an object under the next version; the caller has checked everything."""
        meta = obj["metadata"]
        key = (meta.get("namespace", ""), meta["name"])
        old = self._objects[resource].get(key)
        new = self._stamp(obj)
        self._objects[resource][key] = new
        self._index(resource, key, old, new)
        self._logs[resource].append(Change("MODIFIED" if old else "ADDED", new.version, key, old, new))
        return new

    def remove(self, resource: Resource, key: Key) -> Record:
        """Delete an object; the record of its end has a version of its own."""
        old = self._objects[resource].pop(key)
        last = self._stamp(old.copy())
        self._index(resource, key, old, None)
        self._logs[resource].append(Change("DELETED", last.version, key, old, last))
        return last

    def _stamp(self, obj: Object) -> Record:
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        return Record(obj)

    def _index(self, resource: Resource, key: Key, old: Record | None, new: Record | None) -> None:
        if old is not None:
            for owner in _owners(old):
                self._dependents[owner].pop((resource, key), None)
            if new is None or new.uid != old.uid:
                self._uids.pop(old.uid, None)
        if new is not None:
            self._uids[new.uid] = (resource, key)
            for owner in _owners(new):
                self._dependents.setdefault(owner, {})[resource, key] = None

    def at(self, resource: Resource, version: int) -> dict[Key, Record]:
        """Return the objects as they were at ``version``."""
        log = self._logs[resource]
        state = dict(self._objects[resource])
        for change in reversed(log.changes[log.position(version) :]):
            if change.old is None:
                state.pop(change.key, None)
            else:
                state[change.key] = change.old
        return state

    def position(self, resource: Resource, version: int | None = None) -> int:
        """Return the position from which a watch reads that has seen ``version`` (None: the current one)."""
        log = self._logs[resource]
        return len(log.changes) if version is None else log.position(version)

    async def changes(
        self, resource: Resource, position: int, timeout_s: float | None = None
    ) -> tuple[list[Change], int]:
        """Return the changes from ``position`` on and the next position.

        Waits for at least one change; none after the timeout.
        """
        log = self._logs[resource]
        if position >= len(log.changes):
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            log.waiting.add(future)
            try:
                async with asyncio.timeout(timeout_s):
                    await future
            except TimeoutError:
                return [], position
            finally:
                log.waiting.discard(future)
        return log.changes[position:], len(log.changes)

    async def follow(self, resource: Resource) -> AsyncIterator[Change]:
        """Every object that exists as an addition, then all changes: what the cluster's own parts live on."""
        position = self.position(resource)
        for record in self.all(resource):
            meta = record.obj["metadata"]
            yield Change("ADDED", record.version, (meta.get("namespace", ""), meta["name"]), None, record)
        while True:
            changes, position = await self.changes(resource, position)
            for change in changes:
                yield change


def _owners(record: Record) -> Iterable[str]:
    references: list[dict[str, Any]] = record.obj["metadata"].get("ownerReferences") or []
    return [reference["uid"] for reference in references]
