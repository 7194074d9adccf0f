"""DaemonSets, and the statuses of quotas.

To add a controller, add a step to ``_reconcile``.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable

from tests.fakes.cluster import deletion, objects, quotas
from tests.fakes.cluster.admission import Admission
from tests.fakes.cluster.errors import ApiError
from tests.fakes.cluster.events import Recorder
from tests.fakes.cluster.quantities import amounts, render
from tests.fakes.cluster.resources import (
    DAEMONSETS,
    EVENTS,
    LEASES,
    NODES,
    PODS,
    QUOTAS,
    RESOURCES,
    Object,
    Resource,
)
from tests.fakes.cluster.scheduler import unfit
from tests.fakes.cluster.store import Record, Store

_UNCOUNTED = (EVENTS, LEASES)
_FOLLOWED = tuple(one for one in RESOURCES if not one.virtual and one not in _UNCOUNTED)
"""Everything that a quota may count, but what is written all the time."""
_PAUSE_S = 0.03
_HASH = "controller-revision-hash"
_DAEMON_TAINTS = (
    "not-ready",
    "unreachable",
    "disk-pressure",
    "memory-pressure",
    "pid-pressure",
    "unschedulable",
)
_DONE = ("Succeeded", "Failed")


class Workloads:
    """Brings pods in line with what workloads ask for, after every change, a moment later."""

    def __init__(self, store: Store, admission: Admission, recorder: Recorder) -> None:
        self.store = store
        self.admission = admission
        self.recorder = recorder
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Serve until cancelled."""
        async with asyncio.TaskGroup() as group:
            for resource in _FOLLOWED:
                group.create_task(self._follow(resource))
            while True:
                await self._wake.wait()
                self._wake.clear()
                self._reconcile()
                await asyncio.sleep(_PAUSE_S)

    async def _follow(self, resource: Resource) -> None:
        async for _ in self.store.follow(resource):
            self._wake.set()

    def _reconcile(self) -> None:
        steps: tuple[tuple[Resource, Callable[[Record], None]], ...] = (
            (DAEMONSETS, self._daemonset),
            (QUOTAS, self._quota),
        )
        for resource, step in steps:
            for record in self.store.all(resource):
                if not record.obj["metadata"].get("deletionTimestamp"):
                    step(record)

    def _daemonset(self, record: Record) -> None:
        template = _daemon_template(record.obj)
        revision = _revision(template)
        nodes = {
            node.obj["metadata"]["name"] for node in self.store.all(NODES) if not unfit(template, node.obj)
        }
        placed: dict[str, Record] = {}
        for pod in self._pods(record):
            node = _pinned_to(pod.obj)
            stale = pod.obj["metadata"]["labels"].get(_HASH) != revision
            if _phase(pod) in _DONE or stale or node not in nodes or node in placed:
                deletion.delete(self.store, PODS, pod)
            else:
                placed[node] = pod
        for node in sorted(nodes - placed.keys()):
            self._create(DAEMONSETS, record, _pin(template, node), revision)
        ready = sum(_is_ready(pod) for pod in placed.values())
        self._set_status(
            DAEMONSETS,
            record,
            {
                "desiredNumberScheduled": len(nodes),
                "currentNumberScheduled": len(placed),
                "updatedNumberScheduled": len(placed),
                "numberMisscheduled": 0,
                "numberReady": ready,
                "numberAvailable": ready,
                "numberUnavailable": len(nodes) - ready,
            },
        )

    def _quota(self, record: Record) -> None:
        hard = record.obj["spec"].get("hard") or {}
        used = quotas.usage(self.store, record.obj["metadata"]["namespace"], amounts(hard))
        self._set_status(
            QUOTAS, record, {"hard": hard, "used": {name: render(name, used[name]) for name in sorted(hard)}}
        )

    def _pods(self, owner: Record) -> list[Record]:
        found = [record for resource, record in self.store.dependents(owner.uid) if resource is PODS]
        return [record for record in found if not record.obj["metadata"].get("deletionTimestamp")]

    def _create(self, resource: Resource, owner: Record, template: Object, revision: str) -> None:
        meta = owner.obj["metadata"]
        pod: Object = json.loads(json.dumps(template))
        pod.pop("apiVersion", None)
        made: Object = pod.setdefault("metadata", {})
        made["generateName"] = f"{meta['name']}-"
        made.setdefault("labels", {})[_HASH] = revision
        reference = {"apiVersion": resource.api_version, "kind": resource.kind, "name": meta["name"]}
        made["ownerReferences"] = [
            {**reference, "uid": owner.uid, "controller": True, "blockOwnerDeletion": True}
        ]
        try:
            obj = objects.begin(PODS, pod, meta["namespace"])
            self.admission.create(PODS, obj)
        except ApiError as error:
            self.recorder.record(
                owner.obj,
                "FailedCreate",
                f"Error creating: {error}",
                source=f"{resource.plural}-controller",
                warning=True,
            )
            return
        self.store.put(PODS, obj)

    def _set_status(self, resource: Resource, record: Record, status: Object) -> None:
        current = self.store.by_uid(record.uid)
        if current is None:
            return
        obj = current[1].copy()
        if "generation" in obj["metadata"] and resource is not QUOTAS:
            status = {**status, "observedGeneration": obj["metadata"]["generation"]}
        if obj.get("status") != status:
            obj["status"] = status
            self.store.put(resource, obj)


def _revision(template: Object) -> str:
    return hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:10]


def _daemon_template(daemonset: Object) -> Object:
    template: Object = json.loads(json.dumps(daemonset["spec"]["template"]))
    tolerations = template["spec"].setdefault("tolerations", [])
    tolerations += [{"key": f"node.kubernetes.io/{name}", "operator": "Exists"} for name in _DAEMON_TAINTS]
    return template


def _pin(template: Object, node: str) -> Object:
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    return {**template, "spec": {**template["spec"], "affinity": {"nodeAffinity": required}}}


def _pinned_to(pod: Object) -> str:
    affinity = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    node: str = affinity["nodeSelectorTerms"][0]["matchFields"][0]["values"][0]
    return node


def _phase(pod: Record) -> str:
    phase: str = pod.obj["status"].get("phase", "")
    return phase


def _is_ready(pod: Record) -> bool:
    conditions = pod.obj["status"].get("conditions") or []
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
