"""Fixtures of the Kubernetes backend's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.sandbox.kubernetes import network
from tests.builders.kubernetes_builders import build_reference, prepared
from tests.fakes.cluster import FakeCluster


@pytest.fixture(autouse=True)
def _short_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the network probes between pods; the drills use the real duration."""
    monkeypatch.setattr(network, "_WINDOW_S", 0.2)


@pytest.fixture(scope="module")
def cluster_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data folder with the reference image."""
    folder = tmp_path_factory.mktemp("home")
    build_reference(folder)
    return folder


@pytest.fixture
async def cluster(cluster_home: Path) -> AsyncIterator[FakeCluster]:
    """Fake cluster with the manifests applied."""
    async with prepared(cluster_home) as cluster:
        yield cluster
