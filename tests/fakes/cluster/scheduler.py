"""Binds pending pods to nodes that have room and take pods."""

from __future__ import annotations

import asyncio
from collections import Counter

from tests.fakes.cluster.api.objects import condition
from tests.fakes.cluster.api.quotas import Amounts, amounts, of_pod
from tests.fakes.cluster.api.resources import NODES, PODS, Object
from tests.fakes.cluster.api.store import Change, Record, Store

_ENDED = ("Succeeded", "Failed")


class Scheduler:
    """The default scheduler: first come, first served."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._used: dict[str, Amounts] = {}
        self._placed: dict[str, tuple[str, Amounts]] = {}
        self._pending: dict[str, tuple[str, str]] = {}
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Serve until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_pods())
            group.create_task(self._follow_nodes())
            while True:
                await self._wake.wait()
                self._wake.clear()
                self._schedule()

    async def _follow_pods(self) -> None:
        async for change in self.store.follow(PODS):
            self._note(change)

    async def _follow_nodes(self) -> None:
        async for _ in self.store.follow(NODES):
            self._wake.set()

    def _note(self, change: Change) -> None:
        pod, uid = change.new.obj, change.new.uid
        over = change.type == "DELETED" or pod["status"].get("phase") in _ENDED
        node = pod["spec"].get("nodeName")
        if over:
            self._pending.pop(uid, None)
            self._free(uid)
        elif node:
            self._pending.pop(uid, None)
            self._place(uid, node, pod)
        elif not pod["metadata"].get("deletionTimestamp"):
            if uid not in self._pending:
                self._wake.set()
            self._pending[uid] = change.key

    def _place(self, uid: str, node: str, pod: Object) -> None:
        if uid not in self._placed:
            wanted = _wanted(pod)
            self._placed[uid] = node, wanted
            self._used.setdefault(node, Counter()).update(wanted)

    def _free(self, uid: str) -> None:
        placed = self._placed.pop(uid, None)
        if placed is not None:
            self._used[placed[0]].subtract(placed[1])
            self._wake.set()

    def _schedule(self) -> None:
        pods = [self.store.get(PODS, *key) for key in self._pending.values()]
        waiting = [
            pod
            for pod in pods
            if pod is not None and pod.uid in self._pending and not pod.obj["spec"].get("nodeName")
        ]
        nodes = list(self.store.all(NODES))
        nowhere: dict[str, str] = {}
        for record in waiting:
            alike = repr(sorted(_wanted(record.obj).items()))
            if alike not in nowhere:  # where its twin did not fit, neither does it
                node, message = self._find(record.obj, nodes)
                if node is not None:
                    self._bind(record, node)
                    continue
                nowhere[alike] = message
            self._give_reason(record, nowhere[alike])

    def _find(self, pod: Object, nodes: list[Record]) -> tuple[str | None, str]:
        """The node with the fewest pods that can take one more, or why there is none."""
        wanted = _wanted(pod)
        reasons: Counter[str] = Counter()
        fitting: list[tuple[int, str]] = []
        for node in nodes:
            why = _closed(node.obj) or self._short(node.obj, wanted)
            if why:
                reasons.update(why)
            else:
                name = node.obj["metadata"]["name"]
                fitting.append((self._used.get(name, Counter())["pods"], name))
        if fitting:
            return min(fitting)[1], ""
        listed = ", ".join(f"{count} {why}" for why, count in sorted(reasons.items()))
        none = "no nodes available to schedule pods"
        return None, f"0/{len(nodes)} nodes are available: {listed}." if nodes else none

    def _bind(self, record: Record, node: str) -> None:
        obj = record.copy()
        obj["spec"]["nodeName"] = node
        condition(obj, "PodScheduled", true=True)
        self._place(record.uid, node, obj)
        self._pending.pop(record.uid, None)
        self.store.put(PODS, obj)

    def _give_reason(self, record: Record, message: str) -> None:
        told = [one.get("message") for one in record.obj["status"].get("conditions") or []]
        if message in told:
            return
        obj = record.copy()
        condition(obj, "PodScheduled", true=False, reason="Unschedulable", message=message)
        self.store.put(PODS, obj)

    def _short(self, node: Object, wanted: Amounts) -> list[str]:
        room = amounts(node["status"]["allocatable"])
        room.subtract(self._used.get(node["metadata"]["name"], Counter()))
        short = [name for name, count in wanted.items() if count > room[name]]
        return ["Too many pods" if name == "pods" else f"Insufficient {name}" for name in short]


def _wanted(pod: Object) -> Amounts:
    wanted = of_pod(pod["spec"], "requests")
    wanted["pods"] = 1
    return wanted


def _closed(node: Object) -> list[str]:
    """Why a node takes no pods: no pod here tolerates a taint."""
    taints = [taint["key"] for taint in node["spec"].get("taints", [])]
    if node["spec"].get("unschedulable"):
        taints.append("node.kubernetes.io/unschedulable")
    return [f"node(s) had untolerated taint {{{taints[0]}: }}"] if taints else []
