"""A cluster without machines: whatever is created stays as it was created."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from kubernetes import client

from tests.builders.cluster_builders import api_client
from tests.fakes.cluster import FakeCluster


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[FakeCluster]:
    async with FakeCluster(tmp_path, nodes=[], bookmark_every_s=0.05) as cluster:
        yield cluster


@pytest.fixture
def api(cluster: FakeCluster) -> Iterator[client.ApiClient]:
    with api_client(cluster.kubeconfig) as api:
        yield api


@pytest.fixture
def core(api: client.ApiClient) -> client.CoreV1Api:
    return client.CoreV1Api(api)
