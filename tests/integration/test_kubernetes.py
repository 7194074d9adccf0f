"""The Kubernetes backend passes the conformance suite on the fake cluster, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from engine.config.kubernetes import KubernetesConfig
from engine.config.sandbox import SandboxConfig
from engine.sandbox.conformance import CHECKS, Subject, reference_tree
from engine.sandbox.conformance.subject import SECRET
from engine.sandbox.images import build_image
from engine.sandbox.kubernetes.backend import KubernetesBackend
from tests.fakes.cluster import FakeCluster


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    tree = folder / "tree"
    tree.mkdir()
    reference_tree(tree)
    build_image(folder, "reference", tree)
    (folder / "secret").write_text(SECRET)
    return folder


@pytest.fixture
async def cluster(home: Path) -> AsyncIterator[FakeCluster]:
    async with FakeCluster(home, pod_pids_limit=32) as cluster:
        yield cluster


@pytest.fixture
async def backend(cluster: FakeCluster) -> AsyncIterator[KubernetesBackend]:
    kubernetes = KubernetesConfig(
        kubeconfig=str(cluster.kubeconfig), namespace="default", allow_local_images=True
    )
    backend = KubernetesBackend(
        SandboxConfig(backend="kubernetes", kubernetes=kubernetes, max_live=40, max_starting=8)
    )
    yield backend
    await backend.close()
    await cluster.settled()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_conformance(
    check: Callable[[Subject], Awaitable[None]],
    home: Path,
    backend: KubernetesBackend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOST_SECRET", SECRET)
    await check(Subject(backend=backend, image="local:reference", secret_file=home / "secret"))
