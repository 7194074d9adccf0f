"""The garbage collector and the namespace controller: what goes when something else goes."""

from __future__ import annotations

import asyncio

from tests.fakes.cluster import deletion
from tests.fakes.cluster.resources import NAMESPACES, RESOURCES, Object, Resource
from tests.fakes.cluster.store import Record, Store

_STORED = tuple(one for one in RESOURCES if not one.virtual)


class Collector:
    """Deletes what has lost its owner or its namespace."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def run(self) -> None:
        """Serve until cancelled."""
        async with asyncio.TaskGroup() as group:
            for resource in _STORED:
                group.create_task(self._follow(resource))

    async def _follow(self, resource: Resource) -> None:
        async for change in self.store.follow(resource):
            if change.type == "DELETED":
                self._gone(resource, change.new)
                continue
            current = self.store.by_uid(change.new.uid)
            if current is None:
                continue
            if current[1].obj["metadata"].get("deletionTimestamp"):
                self._ending(*current)
            elif change.old is None:
                self._release(*current)

    def _gone(self, resource: Resource, last: Record) -> None:
        for dependent in self.store.dependents(last.uid):
            self._release(*dependent)
        if resource.namespaced:
            namespace = self.store.get(NAMESPACES, "", last.obj["metadata"]["namespace"])
            if namespace is not None:
                self._ending(NAMESPACES, namespace)

    def _release(self, resource: Resource, record: Record) -> None:
        """Delete an object none of whose owners lives; strike dead owners off one that has another."""
        references = record.obj["metadata"].get("ownerReferences") or []
        alive = [one for one in references if self.store.by_uid(one["uid"]) is not None]
        if references and not alive:
            deletion.delete(self.store, resource, record)
        elif len(alive) < len(references):
            self._set(resource, record, "ownerReferences", alive)

    def _ending(self, resource: Resource, record: Record) -> None:
        """Bring an object whose deletion has begun as far as it gets."""
        meta = record.obj["metadata"]
        if not meta.get("deletionTimestamp"):
            return
        if resource is NAMESPACES:
            self._empty(record)
            return

    def _empty(self, namespace: Record) -> None:
        name = namespace.obj["metadata"]["name"]
        left = False
        for resource in _STORED:
            if resource.namespaced:
                for record in self.store.all(resource, name):
                    if not record.obj["metadata"].get("deletionTimestamp"):
                        deletion.delete(self.store, resource, record)
                    left = left or self.store.by_uid(record.uid) is not None
        if not left and self.store.get(NAMESPACES, "", name) is not None:
            self.store.remove(NAMESPACES, ("", name))

    def _set(self, resource: Resource, record: Record, field: str, value: list[object]) -> None:
        obj: Object = record.copy()
        obj["metadata"][field] = value
        if not value:
            del obj["metadata"][field]
        deletion.finish(self.store, resource, self.store.put(resource, obj))
