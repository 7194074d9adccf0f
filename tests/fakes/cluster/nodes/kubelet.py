"""The kubelets of all fake nodes: one worker for each pod that the scheduler put on a node."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from engine.sandbox.local.backend import LocalBackend
from tests.fakes.cluster.api.resources import PODS, Object
from tests.fakes.cluster.api.rest import delete
from tests.fakes.cluster.api.store import Key, Record, Store
from tests.fakes.cluster.counters import Counters
from tests.fakes.cluster.faults import Faults
from tests.fakes.cluster.nodes.bridge import Addresses
from tests.fakes.cluster.nodes.containers import Container
from tests.fakes.cluster.nodes.images import NodeImages, Registry
from tests.fakes.cluster.nodes.worker import Cause, PodWorker

_log = logging.getLogger(__name__)


class Kubelet:
    """Runs pods as local sandboxes.

    Args:
        pod_pids_limit: the kubelet's ``podPidsLimit``: processes of one container.
        own_agents: run the command that a pod gives for its agent; otherwise the sandbox's own agent, which
            is there anyway, speaks for it.
    """

    def __init__(
        self,
        store: Store,
        backend: LocalBackend,
        registry: Registry,
        faults: Faults,
        counters: Counters,
        *,
        addresses: Addresses,
        pod_pids_limit: int,
        own_agents: bool,
    ) -> None:
        self.store = store
        self.backend = backend
        self.registry = registry
        self.faults = faults
        self.counters = counters
        self.addresses = addresses
        self.pod_pids_limit = pod_pids_limit
        self.own_agents = own_agents
        self.lost: set[str] = set()
        """Names of nodes whose kubelet answers nobody."""
        self.images: dict[str, NodeImages] = {}
        self.workers: dict[str, PodWorker] = {}
        """By the pod's uid."""
        self.half_open: list[asyncio.StreamWriter] = []
        """Connections to vanished machines: kept, or they would end as garbage."""
        self.boxes = 0
        """Local sandboxes that exist now."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Serve until cancelled."""
        try:
            async for change in self.store.follow(PODS):
                self.counters.pod_changed(change)
                self._changed(change.type, change.new)
        finally:
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for connection in self.half_open:
                connection.close()

    def _changed(self, kind: str, record: Record) -> None:
        worker = self.workers.get(record.uid)
        if worker is not None:
            if kind == "DELETED":
                worker.stop(Cause.FORGOTTEN)
            elif record.obj["metadata"].get("deletionTimestamp"):
                worker.stop(Cause.DELETED)
            return
        current = self.store.by_uid(record.uid)
        node = current[1].obj["spec"].get("nodeName") if current else None
        if current is None or not node or node in self.lost:
            return
        if current[1].obj["metadata"].get("deletionTimestamp"):
            self.confirm(current[1])
        elif current[1].obj["status"].get("phase") not in ("Succeeded", "Failed"):
            self._start(current[1])

    def _start(self, record: Record) -> None:
        worker = PodWorker(self, record.obj)
        self.workers[record.uid] = worker
        task = asyncio.get_running_loop().create_task(self._serve(worker))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, worker: PodWorker) -> None:
        try:
            await worker.run()
        except Exception:
            _log.exception("the worker of pod %s/%s failed", *worker.key)
            raise
        finally:
            del self.workers[worker.uid]
            current = self.store.by_uid(worker.uid)
            ending = current and current[1].obj["metadata"].get("deletionTimestamp")
            if current and ending and worker.node not in self.lost:
                self.confirm(current[1])

    def confirm(self, record: Record) -> None:
        """A pod that is being deleted has ended: let its object go."""
        delete(self.store, PODS, record, {"gracePeriodSeconds": 0})

    def node_images(self, node: str) -> NodeImages:
        """What that node has pulled."""
        return self.images.setdefault(node, NodeImages())

    def containers_of(self, user: int, pod: Object, *, besides: Container) -> int:
        """Count the started containers of a user on the pod's node that share the node's users."""
        return sum(
            container is not besides
            and container.user == user
            and not container.has_own_users
            and container.started_at is not None
            for worker in self.workers.values()
            if worker.node == pod["spec"]["nodeName"]
            for container in worker.containers
        )

    def worker_of(self, namespace: str, name: str) -> PodWorker | None:
        """The worker of a pod, while it has one."""
        record = self.store.get(PODS, namespace, name)
        return self.workers.get(record.uid) if record else None

    def lose(self, node: str) -> None:
        """Let the node's machine vanish: its pods fall silent, their connections stay half-open."""
        self.lost.add(node)
        for worker in self.workers.values():
            if worker.node == node:
                worker.stop(Cause.LOST)

    def set_status(self, key: Key, uid: str, change: Callable[[Object], None]) -> bool:
        """Change a pod's status; False when that pod is no more or its node is lost."""
        record = self.store.get(PODS, *key)
        if record is None or record.uid != uid or record.obj["spec"].get("nodeName") in self.lost:
            return False
        obj = record.copy()
        change(obj)
        if obj != record.obj:
            self.store.put(PODS, obj)
        return True
