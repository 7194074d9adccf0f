"""Binds pending pods to nodes that have room, match the selector and whose taints are tolerated."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable

from tests.fakes.cluster import deletion
from tests.fakes.cluster.events import Recorder
from tests.fakes.cluster.objects import condition
from tests.fakes.cluster.quantities import Amounts, amounts, of_pod
from tests.fakes.cluster.resources import NODES, PODS, Object
from tests.fakes.cluster.store import Change, Record, Store

_ENDED = ("Succeeded", "Failed")
_SCHEDULER = "default-scheduler"


class Scheduler:
    """The default scheduler: higher priority first, then first come first served; a pod that fits nowhere
    pushes out pods of lower priority on one node."""

    def __init__(self, store: Store, recorder: Recorder) -> None:
        self.store = store
        self.recorder = recorder
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
        elif pod["spec"].get("schedulerName") == _SCHEDULER and not pod["metadata"].get("deletionTimestamp"):
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
        for record in sorted(waiting, key=lambda one: -one.obj["spec"].get("priority", 0)):
            alike = _needs(record.obj)
            if alike not in nowhere:  # where its twin did not fit, neither does it
                node, message = self._find(record.obj, nodes)
                if node is not None:
                    self._bind(record, node)
                    continue
                nowhere[alike] = message
                self._make_room(record.obj, nodes)
            self._give_reason(record, nowhere[alike])

    def _find(self, pod: Object, nodes: list[Record]) -> tuple[str | None, str]:
        """The node with the fewest pods that can take one more, or why there is none."""
        wanted = _wanted(pod)
        reasons: Counter[str] = Counter()
        fitting: list[tuple[int, str]] = []
        for node in nodes:
            why = unfit(pod, node.obj) or self._short(node.obj, wanted)
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
        obj, meta = record.copy(), record.obj["metadata"]
        obj["spec"]["nodeName"] = node
        condition(obj, "PodScheduled", true=True)
        self._place(record.uid, node, obj)
        self._pending.pop(record.uid, None)
        text = f"Successfully assigned {meta['namespace']}/{meta['name']} to {node}"
        self.recorder.record(self.store.put(PODS, obj).obj, "Scheduled", text, source=_SCHEDULER)

    def _give_reason(self, record: Record, message: str) -> None:
        told = [one.get("message") for one in record.obj["status"].get("conditions") or []]
        if message in told:
            return
        obj = record.copy()
        condition(obj, "PodScheduled", true=False, reason="Unschedulable", message=message)
        self.recorder.record(
            self.store.put(PODS, obj).obj, "FailedScheduling", message, source=_SCHEDULER, warning=True
        )

    def _make_room(self, pod: Object, nodes: list[Record]) -> None:
        """Preempt: delete the fewest lower pods of the first node where that helps."""
        priority, wanted = pod["spec"].get("priority", 0), _wanted(pod)
        pods = [one for one in self.store.all(PODS) if one.uid in self._placed]
        if pod["spec"].get("preemptionPolicy") == "Never" or not any(
            one.obj["spec"].get("priority", 0) < priority for one in pods
        ):
            return
        for node in nodes:
            name = node.obj["metadata"]["name"]
            here = [one for one in pods if self._placed[one.uid][0] == name]
            if any(one.obj["metadata"].get("deletionTimestamp") for one in here):
                continue  # room is being made there already
            lower = [one for one in here if one.obj["spec"].get("priority", 0) < priority]
            lower.sort(key=lambda one: one.obj["spec"].get("priority", 0))
            victims = self._victims(node.obj, wanted, lower)
            if victims and not unfit(pod, node.obj):
                for victim in victims:
                    text = f"Preempted by pod {pod['metadata']['uid']} on node {name}"
                    self.recorder.record(victim.obj, "Preempted", text, source=_SCHEDULER, warning=True)
                    deletion.delete(self.store, PODS, _disrupted(self.store, victim))
                return

    def _victims(self, node: Object, wanted: Amounts, lower: list[Record]) -> list[Record]:
        freed: Amounts = Counter()
        for count, victim in enumerate(lower, 1):
            freed.update(self._placed[victim.uid][1])
            if not self._short(node, wanted, freed):
                return lower[:count]
        return []

    def _short(self, node: Object, wanted: Amounts, freed: Amounts | None = None) -> list[str]:
        room = amounts(node["status"].get("allocatable")) + (freed or Counter())
        room.subtract(self._used.get(node["metadata"]["name"], Counter()))
        short = [name for name, count in wanted.items() if count > room[name]]
        return ["Too many pods" if name == "pods" else f"Insufficient {name}" for name in short]


def _disrupted(store: Store, victim: Record) -> Record:
    obj = victim.copy()
    text = "default-scheduler: preempting to accommodate a higher priority pod"
    condition(obj, "DisruptionTarget", true=True, reason="PreemptionByScheduler", message=text)
    return store.put(PODS, obj)


def _needs(pod: Object) -> str:
    """What decides where a pod fits, as text: equal for pods that fit in the same places."""
    spec = pod["spec"]
    fields = ("nodeSelector", "tolerations", "affinity", "priority", "preemptionPolicy")
    return repr((sorted(_wanted(pod).items()), [spec.get(field) for field in fields]))


def _wanted(pod: Object) -> Amounts:
    wanted = of_pod(pod["spec"], "requests")
    wanted["pods"] = 1
    return wanted


def unfit(pod: Object, node: Object) -> list[str]:
    """Why a pod may not run on a node, its room apart."""
    spec = pod["spec"]
    labels = node["metadata"].get("labels") or {}
    for taint in _taints(node):
        if taint.get("effect") != "PreferNoSchedule" and not tolerates(spec.get("tolerations") or [], taint):
            key, value = taint["key"], taint.get("value", "")
            return [f"node(s) had untolerated taint {{{key}: {value}}}"]
    wanted = spec.get("nodeSelector") or {}
    if any(labels.get(key) != value for key, value in wanted.items()) or not _affine(spec, node):
        return ["node(s) didn't match Pod's node affinity/selector"]
    return []


def _affine(spec: Object, node: Object) -> bool:
    """Required node affinity by ``metadata.name``, which is how DaemonSets pin their pods, and by labels."""
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms: list[Object] = required.get("nodeSelectorTerms") or []
    return not terms or any(_term_fits(term, node) for term in terms)


def _term_fits(term: Object, node: Object) -> bool:
    labels = node["metadata"].get("labels") or {}
    fields = {"metadata.name": node["metadata"]["name"]}
    wants = [(one, labels) for one in term.get("matchExpressions") or []]
    wants += [(one, fields) for one in term.get("matchFields") or []]
    return all(_expression_fits(one, table.get(one["key"])) for one, table in wants)


def _expression_fits(expression: Object, have: str | None) -> bool:
    values = expression.get("values") or []
    match expression["operator"]:
        case "In":
            return have in values
        case "NotIn":
            return have not in values
        case "Exists":
            return have is not None
        case "DoesNotExist":
            return have is None
    return False


def _taints(node: Object) -> Iterable[Object]:
    spec = node.get("spec") or {}
    yield from spec.get("taints") or []
    if spec.get("unschedulable"):
        yield {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


def tolerates(tolerations: list[Object], taint: Object) -> bool:
    """Whether one of the tolerations covers a taint."""
    return any(
        one.get("effect") in (None, "", taint["effect"])
        and (
            (not one.get("key") and one.get("operator") == "Exists")
            or (
                one.get("key") == taint["key"]
                and (one.get("operator") == "Exists" or one.get("value", "") == taint.get("value", ""))
            )
        )
        for one in tolerations
    )
