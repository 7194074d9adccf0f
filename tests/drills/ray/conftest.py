"""One real Ray cluster for the tests of this folder."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders.ray_clusters import TOKEN, RayCluster, ray_cluster
from tests.fakes.s3_server import s3_bucket

if importlib.util.find_spec("ray") is None:
    pytest.skip("Ray is not installed: `make ray` installs it", allow_module_level=True)


@pytest.fixture(scope="package")
def bucket() -> Iterator[str]:
    """Yield the address of an object store whose credentials the cluster's nodes have."""
    with s3_bucket() as url:
        yield url


@pytest.fixture(scope="package")
def cluster(bucket: str) -> Iterator[RayCluster]:  # noqa: ARG001 - the nodes use its credentials
    """Yield a cluster with a running head node, which has the custom resource ``head``."""
    with (
        tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder,
        ray_cluster(Path(folder)) as cluster,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("RAY_AUTH_TOKEN", TOKEN)
        patch.setenv("RAY_API_SERVER_ADDRESS", cluster.address)
        cluster.start_head({"head": 1})
        yield cluster
