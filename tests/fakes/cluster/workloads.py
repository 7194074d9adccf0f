"""DaemonSets, and the statuses of quotas."""

from __future__ import annotations

import asyncio
import json

from tests.fakes.cluster import objects, quotas
from tests.fakes.cluster.admission import Admission
from tests.fakes.cluster.quantities import amounts, render
from tests.fakes.cluster.resources import DAEMONSETS, NODES, PODS, QUOTAS, Object, Resource
from tests.fakes.cluster.store import Record, Store

_PAUSE_S = 0.03


class Workloads:
    """Brings pods in line with what DaemonSets ask for, after every change, a moment later."""

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
        status = {"hard": hard, "used": {name: render(name, used[name]) for name in amounts(hard)}}
        if record.obj.get("status") != status:
            self.store.put(QUOTAS, record.copy() | {"status": status})
