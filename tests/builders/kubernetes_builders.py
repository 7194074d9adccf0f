"""Kubernetes for tests: the manifests of ``deploy/``, a fake cluster prepared with them, the backend."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import yaml

from engine.config.kubernetes import KubernetesConfig
from engine.config.sandbox import SandboxConfig
from engine.sandbox.base import SandboxLimits, SandboxSpec
from engine.sandbox.conformance import reference_tree
from engine.sandbox.kubernetes.api.client import KubeApi
from engine.sandbox.kubernetes.api.errors import ApiError
from engine.sandbox.kubernetes.backend import KubernetesBackend
from engine.sandbox.local.images import build_image
from tests.fakes.cluster import FakeCluster

MANIFESTS = Path(__file__).parents[2] / "deploy" / "kubernetes" / "sandbox"
_PLURALS = {"NetworkPolicy": "networkpolicies", "PriorityClass": "priorityclasses"}
_WITHOUT_NAMESPACE = {"Namespace", "ClusterRole", "ClusterRoleBinding", "PriorityClass"}


def documents(folder: Path = MANIFESTS) -> list[dict[str, Any]]:
    """Return every object of a kustomization, in order."""
    named = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    return [document for name in named for document in yaml.safe_load_all((folder / name).read_text())]


def path_of(document: dict[str, Any]) -> str:
    """Return the API path of an object's collection."""
    kind, version = document["kind"], document["apiVersion"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    plural = _PLURALS.get(kind, f"{kind.lower()}s")
    if kind in _WITHOUT_NAMESPACE:
        return f"{root}/{plural}"
    return f"{root}/namespaces/{document['metadata']['namespace']}/{plural}"


async def apply(api: KubeApi, folder: Path = MANIFESTS) -> None:
    """Create the objects that do not exist yet. Raises ApiError."""
    for document in documents(folder):
        try:
            await api.create(path_of(document), document)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise


NAMESPACE = "trainyard-sandboxes"
IMAGE = "local:reference"
SPEC = SandboxSpec(
    image=IMAGE, run_id="run-1", limits=SandboxLimits(memory_mb=96, processes=32, disk_mb=32, lifetime_s=300)
)
ACCOUNT = "trainyard-sandbox-controller"


def build_reference(home: Path) -> None:
    """Build the image ``local:reference``."""
    tree = home / "tree"
    tree.mkdir()
    reference_tree(tree)
    build_image(home, "reference", tree)


@contextlib.asynccontextmanager
async def prepared(home: Path, **settings: Any) -> AsyncIterator[FakeCluster]:
    """Open a fake cluster with the manifests; check at the end that it has settled."""
    async with FakeCluster(home, **{"tls": False, **settings}) as cluster:
        api = await KubeApi.connect(KubernetesConfig(kubeconfig=str(cluster.kubeconfig)))
        try:
            await apply(api)
        finally:
            await api.close()
        cluster.counters.reset()
        yield cluster
        await cluster.settled()


def kubernetes_config(cluster: FakeCluster, **settings: Any) -> KubernetesConfig:
    """Return a configuration with the engine's account and short timeouts."""
    return KubernetesConfig.model_validate(
        {
            "kubeconfig": str(cluster.kubeconfig_of_account(NAMESPACE, ACCOUNT)),
            "allow_local_images": True,
            "priority_class": "trainyard-sandbox",
            "request_timeout_s": 3.0,
            "heartbeat_s": 0.5,
            "owner_timeout_s": 2.0,
            "writes_per_second": 200.0,
            "write_burst": 200,
            "delete_grace_s": 1,
            **settings,
        }
    )


@contextlib.asynccontextmanager
async def opened(
    cluster: FakeCluster, *, max_live: int = 16, max_starting: int = 8, **settings: Any
) -> AsyncIterator[KubernetesBackend]:
    """Open a backend; close it afterwards."""
    config = SandboxConfig(
        backend="kubernetes",
        kubernetes=kubernetes_config(cluster, **settings),
        max_live=max_live,
        max_starting=max_starting,
        memory_mb=SPEC.limits.memory_mb,
        processes=SPEC.limits.processes,
        disk_mb=SPEC.limits.disk_mb,
    )
    backend = KubernetesBackend(config)
    try:
        yield backend
    finally:
        await backend.close()


PATIENCE_S = 120.0


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.02)


async def until_async(condition: Callable[[], Any]) -> None:
    """Wait until an asynchronous condition is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not await condition():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.1)


async def as_admin(cluster: FakeCluster) -> KubeApi:
    """Connect to the cluster as its administrator."""
    return await KubeApi.connect(KubernetesConfig(kubeconfig=str(cluster.kubeconfig)))
