"""A real vLLM server on a node of a real Ray cluster."""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path

import pytest

from tests.builders.cluster_engines import evaluation, events, servers
from tests.builders.ray_clusters import ray_cluster

pytestmark = pytest.mark.usefixtures("vllm_python")


@pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed: `make ray` installs it"
)
def test_an_evaluation_samples_on_a_server_of_the_cluster(vllm_python: Path, tmp_path: Path) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder,
        ray_cluster(Path(folder)) as cluster,
    ):
        cluster.start_head()
        run = evaluation(cluster, tmp_path, python=vllm_python, replicas=1, samples=4)
        printed = run.communicate(timeout=900)[0]
        assert run.returncode == 0, printed
        assert not servers(cluster, 0)
    (finished,) = events(tmp_path, "evaluation_finished")
    assert finished["num_samples"] == 12
    states = [engine["state"] for row in events(tmp_path, "engines_reported") for engine in row["replicas"]]
    assert "ready" in states
