"""What etcd and the watch cache are to a real API server: objects, one version counter, and the log of
changes.

Objects are immutable once stored: a write brings a new one. Every resource has its own log, so that a watch
sees only its changes, a list can be answered as of an older version, and the next page of a list shows the
first page's world. Old changes are forgotten; whoever still needs them gets 410.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.fakes.cluster.errors import gone
from tests.fakes.cluster.resources import RESOURCES, Object, Resource

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
    """The changes of one resource, oldest first; positions never change when old ones are forgotten."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.start = 0
        self.floor = 0
        """Versions below this cannot be told any more."""
        self.waiting: set[asyncio.Future[None]] = set()

    @property
    def end(self) -> int:
        return self.start + len(self.changes)

    def append(self, change: Change) -> None:
        self.changes.append(change)
        for future in self.waiting:
            if not future.done():
                future.set_result(None)
        self.waiting.clear()

    def position(self, version: int) -> int:
        """Of the first change after ``version``. Raises ApiError 410."""
        if version < self.floor:
            raise gone(f"too old resource version: {version} ({self.floor})")
        low, high = 0, len(self.changes)
        while low < high:
            middle = (low + high) // 2
            if self.changes[middle].version <= version:
                low = middle + 1
            else:
                high = middle
        return self.start + low

    def forget(self, keep: int) -> None:
        drop = len(self.changes) - keep
        if drop > 0:
            self.floor = self.changes[drop - 1].version
            del self.changes[:drop]
            self.start += drop


_HISTORY = 8_000
"""Changes per resource that are kept for watches, stale lists and later pages."""


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
        self._log(resource, Change("MODIFIED" if old else "ADDED", new.version, key, old, new))
        return new

    def remove(self, resource: Resource, key: Key) -> Record:
        """Delete an object; the record of its end has a version of its own."""
        old = self._objects[resource].pop(key)
        last = self._stamp(old.copy())
        self._index(resource, key, old, None)
        self._log(resource, Change("DELETED", last.version, key, old, last))
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

    def _log(self, resource: Resource, change: Change) -> None:
        log = self._logs[resource]
        log.append(change)
        if len(log.changes) > 2 * _HISTORY:
            log.forget(_HISTORY)

    def at(self, resource: Resource, version: int) -> dict[Key, Record]:
        """The objects as they were at ``version``. Raises ApiError 410."""
        log = self._logs[resource]
        state = dict(self._objects[resource])
        for change in reversed(log.changes[log.position(version) - log.start :]):
            if change.old is None:
                state.pop(change.key, None)
            else:
                state[change.key] = change.old
        return state

    def position(self, resource: Resource, version: int | None = None) -> int:
        """Where a watch from ``version`` (now when None) reads on. Raises ApiError 410."""
        log = self._logs[resource]
        return log.end if version is None else log.position(version)

    async def changes(
        self, resource: Resource, position: int, timeout_s: float | None = None
    ) -> tuple[list[Change], int]:
        """Changes from ``position`` on and the next position; waits for at least one, or empty at the
        timeout.

        Raises:
            ApiError: 410, what comes next is forgotten.
        """
        log = self._logs[resource]
        if position >= log.end:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            log.waiting.add(future)
            try:
                async with asyncio.timeout(timeout_s):
                    await future
            except TimeoutError:
                return [], position
            finally:
                log.waiting.discard(future)
        if position < log.start:
            raise gone()
        return log.changes[position - log.start :], log.end

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
