"""The garbage collector: what goes when its owner goes."""

from __future__ import annotations

import asyncio

from tests.fakes.cluster import deletion
from tests.fakes.cluster.resources import RESOURCES, Resource
from tests.fakes.cluster.store import Record, Store


class Collector:
    """Deletes what has lost its owner."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def run(self) -> None:
        """Serve until cancelled."""
        async with asyncio.TaskGroup() as group:
            for resource in RESOURCES:
                group.create_task(self._follow(resource))

    async def _follow(self, resource: Resource) -> None:
        async for change in self.store.follow(resource):
            if change.type == "DELETED":
                for dependent in self.store.dependents(change.new.uid):
                    self._release(*dependent)
            elif change.old is None and (current := self.store.by_uid(change.new.uid)) is not None:
                self._release(*current)

    def _release(self, resource: Resource, record: Record) -> None:
        """Delete an object none of whose owners lives."""
        references = record.obj["metadata"].get("ownerReferences") or []
        if references and not any(self.store.by_uid(owner["uid"]) for owner in references):
            deletion.delete(self.store, resource, record)
