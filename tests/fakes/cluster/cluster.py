"""``FakeCluster``: everything put together."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import ssl
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import trustme
import yaml

from engine.sandbox.local.backend import LocalBackend
from tests.fakes.cluster.api import objects
from tests.fakes.cluster.api.admission import Admission
from tests.fakes.cluster.api.auth import Auth
from tests.fakes.cluster.api.resources import NAMESPACES
from tests.fakes.cluster.api.rest import Rest
from tests.fakes.cluster.api.server import Server
from tests.fakes.cluster.api.store import Store
from tests.fakes.cluster.controllers import Collector, Workloads
from tests.fakes.cluster.counters import Counters
from tests.fakes.cluster.faults import Faults
from tests.fakes.cluster.nodes.bridge import Addresses
from tests.fakes.cluster.nodes.containers import Exit
from tests.fakes.cluster.nodes.execution import execute
from tests.fakes.cluster.nodes.images import Registry
from tests.fakes.cluster.nodes.kubelet import Kubelet
from tests.fakes.cluster.nodes.machines import Nodes, NodeSpec
from tests.fakes.cluster.nodes.worker import Cause, PodWorker
from tests.fakes.cluster.process import work_switch
from tests.fakes.cluster.scheduler import Scheduler

_PAUSE = "registry.k8s.io/pause:3.10"
_BOOKMARK_S = 5.0
"""Pause between a silent watch's bookmarks; a minute on a real cluster."""


class FakeCluster:
    """A Kubernetes cluster in this process, whose pods are local sandboxes.

        async with FakeCluster(home) as cluster:
            config = KubernetesConfig(kubeconfig=str(cluster.kubeconfig))

    Args:
        home: the data folder whose local images pods may run; also where the sandboxes' ledger is.
        nodes: the machines it begins with; three large ones by default.
        seed: of the faults' generator.
        eviction_after_s: how long the pods of a lost node stay as they are.
        pod_pids_limit: processes of one container.
        own_agents: run the very command that starts an agent in a pod. Slower: otherwise the sandbox's own
            agent, which is there anyway, speaks for it as soon as its client has shown the token.
        scheduler: False leaves every pod without a node.
        tls: serve HTTPS.
    """

    def __init__(
        self,
        home: Path,
        *,
        nodes: Sequence[NodeSpec] | None = None,
        seed: int = 0,
        eviction_after_s: float = 1.0,
        pod_pids_limit: int = 64,
        own_agents: bool = False,
        scheduler: bool = True,
        tls: bool = True,
    ) -> None:
        self.store = Store()
        self.counters = Counters()
        self.faults = Faults(seed)
        self.registry = Registry(home)
        self.registry.add(_PAUSE)
        self.auth = Auth(self.store)
        self.kubelet = Kubelet(
            self.store,
            LocalBackend(home),
            self.registry,
            self.faults,
            self.counters,
            addresses=Addresses(),
            pod_pids_limit=pod_pids_limit,
            own_agents=own_agents,
        )
        self.nodes = Nodes(self.store, self.kubelet, eviction_after_s=eviction_after_s)
        self.admission = Admission(self.store)
        self.server = Server(
            self.store,
            Rest(self.store, self.admission, self.auth),
            self.auth,
            self.faults,
            self.counters,
            execute=functools.partial(execute, self.kubelet),
            switch=functools.partial(work_switch, self),
            bookmark_every_s=_BOOKMARK_S,
        )
        self._node_specs = (
            [NodeSpec(name=f"node-{number}") for number in range(3)] if nodes is None else nodes
        )
        self._with_scheduler = scheduler
        self._tls = tls
        self._authority: trustme.CA | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="fake-cluster-")
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._furnish()
        parts = (self.kubelet, Collector(self.store), Workloads(self.store, self.admission))
        self._tasks = [asyncio.create_task(part.run()) for part in parts]
        if self._with_scheduler:
            self._tasks.append(asyncio.create_task(Scheduler(self.store).run()))
        try:
            await self.server.start(self._context() if self._tls else None)
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.server.stop()
        for task in self._tasks:
            task.cancel()
        ended = await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.kubelet.backend.close()
        self._folder.cleanup()
        for result in ended:
            if isinstance(result, Exception):
                raise result

    def _furnish(self) -> None:
        namespace = objects.begin(NAMESPACES, {"metadata": {"name": "default"}}, "")
        self.admission.created(NAMESPACES, self.store.put(NAMESPACES, namespace))
        for spec in self._node_specs:
            self.nodes.add(spec)

    def _context(self) -> ssl.SSLContext:
        self._authority = trustme.CA()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._authority.issue_cert("127.0.0.1", "localhost").configure_cert(context)
        return context

    @property
    def url(self) -> str:
        """Of the API server."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.server.port}"

    @property
    def kubeconfig(self) -> Path:
        """A file that makes its reader the administrator."""
        return self.kubeconfig_for(self.auth.admin_token, "admin")

    def kubeconfig_of_user(self, name: str) -> Path:
        """A file that makes its reader the user ``name``, to whom no role is bound."""
        return self.kubeconfig_for(self.auth.token_for(name), name)

    def kubeconfig_of_account(self, namespace: str, name: str) -> Path:
        """A file that makes its reader a service account."""
        return self.kubeconfig_for(self.auth.service_account_token(namespace, name), f"{namespace}-{name}")

    def kubeconfig_for(self, token: str, name: str) -> Path:
        """Write a kubeconfig with that token; it lives as long as the cluster."""
        server: dict[str, str] = {"server": self.url}
        if self._authority is not None:
            pem = self._authority.cert_pem.bytes()
            server["certificate-authority-data"] = base64.b64encode(pem).decode()
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "fake", "cluster": server}],
            "users": [{"name": name, "user": {"token": token}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": name}}],
            "current-context": "fake",
        }
        path = Path(self._folder.name) / f"{name}.kubeconfig"
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(config))
        return path

    def evict(self, namespace: str, name: str) -> None:
        """Let the kubelet evict a pod: phase Failed, reason Evicted. Raises KeyError where it does not
        run."""
        self._worker(namespace, name).stop(Cause.EVICTED, "The node was low on resource: memory.")

    def kill_for_memory(self, namespace: str, name: str) -> None:
        """Let the kernel end a pod's first container for its memory. Raises KeyError."""
        self._worker(namespace, name).containers[0].strike(Exit(137, "OOMKilled"))

    def crash(self, namespace: str, name: str) -> None:
        """End a pod's first container with an exit code. Raises KeyError."""
        self._worker(namespace, name).containers[0].strike(Exit(1))

    def _worker(self, namespace: str, name: str) -> PodWorker:
        worker = self.kubelet.worker_of(namespace, name)
        if worker is None:
            raise KeyError(f"no kubelet runs a pod {namespace}/{name}")
        return worker

    async def settled(self, timeout_s: float = 120.0) -> None:
        """Wait until no pod is live and no sandbox exists. Raises TimeoutError, telling what is left."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.counters.pods_live or self.kubelet.boxes or self.kubelet.workers:
                    await asyncio.sleep(0.02)
                return
        raise TimeoutError(
            f"after {timeout_s:g} s {self.counters.pods_live} pods are live, {self.kubelet.boxes} sandboxes "
            f"exist and {len(self.kubelet.workers)} pods are being worked on"
        )
