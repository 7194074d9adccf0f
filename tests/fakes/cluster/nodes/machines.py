"""The machines of the cluster: adding and losing them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from tests.fakes.cluster.api import objects
from tests.fakes.cluster.api.objects import condition
from tests.fakes.cluster.api.resources import NODES, PODS
from tests.fakes.cluster.api.rest import delete
from tests.fakes.cluster.api.store import Record, Store
from tests.fakes.cluster.nodes.kubelet import Kubelet


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """One machine."""

    name: str
    cpu: str = "64"
    memory: str = "256Gi"


class Nodes:
    """The machines, as objects of the API and as kubelets.

    Args:
        eviction_after_s: how long the pods of a lost node stay as they are; 300 seconds on a real cluster by
            the default tolerations.
    """

    def __init__(self, store: Store, kubelet: Kubelet, *, eviction_after_s: float) -> None:
        self.store = store
        self.kubelet = kubelet
        self.eviction_after_s = eviction_after_s

    def add(self, spec: NodeSpec) -> None:
        """A new machine joins and is ready."""
        node = objects.begin(NODES, {"metadata": {"name": spec.name}, "spec": {}}, "")
        room = {"cpu": spec.cpu, "memory": spec.memory, "ephemeral-storage": "1Ti", "pods": "110"}
        node["status"] = {"allocatable": room}
        self.store.put(NODES, node)

    def lose(self, name: str) -> None:
        """The machine vanishes: connections stay half-open, its pods are deleted later and stay Terminating.

        Raises:
            KeyError: there is no such node.
        """
        self.kubelet.lose(name)
        record = self.store.get(NODES, "", name)
        if record is None:
            raise KeyError(f"there is no node '{name}'")
        node = record.copy()
        node["spec"]["taints"] = [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]
        self.store.put(NODES, node)
        loop = asyncio.get_running_loop()
        for pod in self.store.all(PODS):
            if pod.obj["spec"].get("nodeName") == name:
                loop.call_later(self.eviction_after_s, self._evict, pod)

    def _evict(self, record: Record) -> None:
        meta = record.obj["metadata"]
        current = self.store.get(PODS, meta["namespace"], meta["name"])
        if current is None or current.uid != record.uid:
            return
        pod = current.copy()
        text = "Taint manager: deleting due to NoExecute taint"
        condition(pod, "DisruptionTarget", true=True, reason="DeletionByTaintManager", message=text)
        delete(self.store, PODS, self.store.put(PODS, pod))
