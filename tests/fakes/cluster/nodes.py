"""The cluster's machines: adding and losing them."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.fakes.cluster import deletion, objects
from tests.fakes.cluster.kubelet import Kubelet
from tests.fakes.cluster.objects import condition, now
from tests.fakes.cluster.resources import NODES, PODS, Object
from tests.fakes.cluster.scheduler import tolerates
from tests.fakes.cluster.store import Record, Store

_UNREACHABLE = "node.kubernetes.io/unreachable"

VERSION: Object = {"major": "1", "minor": "33", "gitVersion": "v1.33.0+fake"}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """One machine."""

    name: str
    cpu: str = "64"
    memory: str = "256Gi"
    ephemeral_storage: str = "1Ti"
    pods: int = 110
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: Sequence[Mapping[str, str]] = ()


class Nodes:
    """The machines, as objects of the API and as kubelets.

    Args:
        eviction_after_s: how long the pods of a lost node stay as they are when they tolerate its loss for
            longer; 300 seconds on a real cluster by the default tolerations.
    """

    def __init__(self, store: Store, kubelet: Kubelet, *, eviction_after_s: float) -> None:
        self.store = store
        self.kubelet = kubelet
        self.eviction_after_s = eviction_after_s
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def add(self, spec: NodeSpec) -> None:
        """A new machine joins and is ready."""
        capacity = {
            "cpu": spec.cpu,
            "memory": spec.memory,
            "ephemeral-storage": spec.ephemeral_storage,
            "pods": str(spec.pods),
        }
        labels = {
            "kubernetes.io/hostname": spec.name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
        }
        node: Object = {
            "metadata": {"name": spec.name, "labels": {**labels, **spec.labels}},
            "spec": {"taints": [dict(taint) for taint in spec.taints]} if spec.taints else {},
        }
        node = objects.begin(NODES, node, "")
        node["status"] = {
            "capacity": capacity,
            "allocatable": dict(capacity),
            "addresses": [
                {"type": "InternalIP", "address": "127.0.0.1"},
                {"type": "Hostname", "address": spec.name},
            ],
            "nodeInfo": {
                "kubeletVersion": VERSION["gitVersion"],
                "kubeProxyVersion": VERSION["gitVersion"],
                "bootID": spec.name,
                "machineID": spec.name,
                "systemUUID": spec.name,
                "kernelVersion": platform.release(),
                "osImage": platform.system(),
                "operatingSystem": "linux",
                "architecture": "amd64",
                "containerRuntimeVersion": "containerd://2.1.0",
            },
        }
        condition(node, "Ready", true=True, reason="KubeletReady", message="kubelet is posting ready status")
        self.store.put(NODES, node)

    def lose(self, name: str) -> None:
        """The machine vanishes: connections stay half-open, the node becomes NotReady, its pods are deleted
        later and stay Terminating."""
        self.kubelet.lose(name)
        node = self._node(name)
        for one in node["status"]["conditions"]:
            one.update(
                status="Unknown", reason="NodeStatusUnknown", message="Kubelet stopped posting node status."
            )
            one["lastTransitionTime"] = now()
        taints = node["spec"].setdefault("taints", [])
        taints += [{"key": _UNREACHABLE, "effect": effect} for effect in ("NoSchedule", "NoExecute")]
        self.store.put(NODES, node)
        for record in self._pods(name):
            pod = record.copy()
            condition(pod, "Ready", true=False, reason="NodeNotReady")
            self.store.put(PODS, pod)
            self._evict_later(record)

    def _evict_later(self, record: Record) -> None:
        after: float = self.eviction_after_s
        taint = {"key": _UNREACHABLE, "effect": "NoExecute"}
        for one in record.obj["spec"].get("tolerations") or []:
            if tolerates([one], taint):
                if one.get("tolerationSeconds") is None:
                    return
                after = min(after, one["tolerationSeconds"])
        loop = asyncio.get_running_loop()
        self._timers[record.uid] = loop.call_later(after, self._evict, record)

    def _evict(self, record: Record) -> None:
        self._timers.pop(record.uid, None)
        meta = record.obj["metadata"]
        current = self.store.get(PODS, meta["namespace"], meta["name"])
        if current is None or current.uid != record.uid:
            return
        pod = current.copy()
        text = "Taint manager: deleting due to NoExecute taint"
        condition(pod, "DisruptionTarget", true=True, reason="DeletionByTaintManager", message=text)
        deletion.delete(self.store, PODS, self.store.put(PODS, pod))

    def _node(self, name: str) -> Object:
        record = self.store.get(NODES, "", name)
        if record is None:
            raise KeyError(f"there is no node '{name}'")
        return record.copy()

    def _pods(self, node: str) -> list[Record]:
        return [one for one in self.store.all(PODS) if one.obj["spec"].get("nodeName") == node]
