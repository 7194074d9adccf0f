"""The controllers: garbage collection, DaemonSets, the statuses of quotas."""

from __future__ import annotations

import asyncio
import json

from tests.fakes.cluster.api import objects, quotas
from tests.fakes.cluster.api.admission import Admission
from tests.fakes.cluster.api.resources import DAEMONSETS, NODES, PODS, QUOTAS, RESOURCES, Object, Resource
from tests.fakes.cluster.api.rest import delete
from tests.fakes.cluster.api.store import Record, Store

_PAUSE_S = 0.03


class Collector:
    """Deletes objects whose owners are gone."""

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
            delete(self.store, resource, record)


class Workloads:
    """Creates the pods of DaemonSets and counts what quotas limit, shortly after every change."""

    def __init__(self, store: Store, admission: Admission) -> None:
        self.store = store
        self.admission = admission
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Serve until cancelled."""
        async with asyncio.TaskGroup() as group:
            for resource in (PODS, QUOTAS, DAEMONSETS):
                group.create_task(self._follow(resource))
            while True:
                await self._wake.wait()
                self._wake.clear()
                for record in self.store.all(DAEMONSETS):
                    self._daemonset(record)
                for record in self.store.all(QUOTAS):
                    self._quota(record)
                await asyncio.sleep(_PAUSE_S)

    async def _follow(self, resource: Resource) -> None:
        async for _ in self.store.follow(resource):
            self._wake.set()

    def _daemonset(self, record: Record) -> None:
        """Give every node one pod; it needs no scheduler."""
        meta = record.obj["metadata"]
        owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": meta["name"], "uid": record.uid}
        for node in self.store.all(NODES):
            name = f"{meta['name']}-{node.obj['metadata']['name']}"
            if self.store.get(PODS, meta["namespace"], name) is None:
                template: Object = json.loads(json.dumps(record.obj["spec"]["template"]))
                pod = {
                    "metadata": {**template["metadata"], "name": name, "ownerReferences": [owner]},
                    "spec": {**template["spec"], "nodeName": node.obj["metadata"]["name"]},
                }
                obj = objects.begin(PODS, pod, meta["namespace"])
                self.admission.create(PODS, obj)
                self.store.put(PODS, obj)

    def _quota(self, record: Record) -> None:
        hard = record.obj["spec"].get("hard") or {}
        used = quotas.usage(self.store, record.obj["metadata"]["namespace"])
        counted = {name: quotas.render(name, used[name]) for name in quotas.amounts(hard)}
        status = {"hard": hard, "used": counted}
        if record.obj.get("status") != status:
            self.store.put(QUOTAS, record.copy() | {"status": status})
