"""Whole runs whose sandboxes are pods; the fake cluster is a separate process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from engine.config.kubernetes import KubernetesConfig
from engine.config.policies import OraclePolicyConfig
from engine.config.run import RolloutRun, TrainRun
from engine.orchestrator import execute
from engine.sandbox.kubernetes.api.client import KubeApi
from engine.sandbox.kubernetes.owner import leases_path
from tests.builders.kubernetes_builders import NAMESPACE, apply
from tests.integration import toy_yard
from tests.integration.toy_yard import events, open_context

ConfigT = TypeVar("ConfigT", RolloutRun, TrainRun)
REPO = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_yard.taught_home(tmp_path_factory.mktemp("home"))


@pytest.fixture
def kubeconfig(home: Path) -> Iterator[Path]:
    command = [sys.executable, "-m", "tests.fakes.cluster", "--home", str(home)]
    with subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE, text=True) as cluster:
        try:
            assert cluster.stdout is not None
            path = Path(cluster.stdout.readline().strip())
            asyncio.run(_prepare(path))
            yield path
        finally:
            cluster.terminate()


async def _prepare(kubeconfig: Path) -> None:
    api = await KubeApi.connect(KubernetesConfig(kubeconfig=str(kubeconfig)))
    await apply(api)
    await api.close()


async def _leftovers(kubeconfig: Path) -> list[str]:
    api = await KubeApi.connect(KubernetesConfig(kubeconfig=str(kubeconfig)))
    names = []
    for path in (f"/api/v1/namespaces/{NAMESPACE}/pods", leases_path(NAMESPACE)):
        names += [item["metadata"]["name"] for item in (await api.list(path))["items"]]
    await api.close()
    return names


def in_pods(config: ConfigT, kubeconfig: Path) -> ConfigT:
    kubernetes = KubernetesConfig(kubeconfig=str(kubeconfig), allow_local_images=True)
    sandbox = config.sandbox.model_copy(update={"backend": "kubernetes", "kubernetes": kubernetes})
    return config.model_copy(update={"sandbox": sandbox})


def test_the_oracle_solves_every_task_in_pods(home: Path, kubeconfig: Path) -> None:
    config = in_pods(toy_yard.sampling(OraclePolicyConfig()), kubeconfig)
    with open_context(home, "in-pods", config) as run:
        assert execute(config, run) == 0, events(run.run_dir)[-1]
    finished = [event for event in events(run.run_dir) if event["type"] == "trajectory_finished"]
    assert [event["reward"] for event in finished] == [1.0, 1.0]
    assert asyncio.run(_leftovers(kubeconfig)) == []


def test_two_iterations_train_in_pods(home: Path, kubeconfig: Path) -> None:
    config = in_pods(toy_yard.training(home), kubeconfig)
    with open_context(home, "train-in-pods", config) as run:
        assert execute(config, run) == 0, events(run.run_dir)[-1]
    finished = [event for event in events(run.run_dir) if event["type"] == "trajectory_finished"]
    trained = [event for event in finished if event["ref"]["phase"] == "train"]
    assert len(trained) == 2 * 2 * 4
    assert "env_error" not in {event["termination"] for event in finished}
    assert asyncio.run(_leftovers(kubeconfig)) == []
