"""The suite of ``make test-cluster`` on the fake cluster, by network and by exec."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from engine.config.kubernetes import KubernetesConfig
from engine.sandbox.conformance import CHECKS
from engine.sandbox.kubernetes.api.client import KubeApi
from tests.builders.kubernetes_builders import ACCOUNT, MANIFESTS, NAMESPACE, apply, build_reference
from tests.cluster.test_real_cluster import LIMITS
from tests.fakes.cluster import ClusterProcess

_REPO = Path(__file__).parents[3]
_IMAGE = "registry.test/conformance:1"
_AS_MANY_AS_ASKED = ("--pod-pids-limit", str(LIMITS.processes))
"""The kernel counts a process until it is reaped. With a lower limit than the suite's, forks would fail as
soon as a busy machine delayed the agent for a tenth of a second."""

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="pods are bubblewrap sandboxes")


async def kubeconfig_of_the_engine(cluster: ClusterProcess, folder: Path) -> Path:
    """Apply the manifests and write a kubeconfig of the engine's account."""
    api = await KubeApi.connect(KubernetesConfig(kubeconfig=str(cluster.kubeconfig)))
    try:
        await apply(api)
        await apply(api, MANIFESTS / "exec")
        account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{ACCOUNT}"
        token = await api.create(f"{account}/token", {"spec": {}})
    finally:
        await api.close()
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token["status"]["token"]}
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("options", "settings", "deselected"),
    [
        pytest.param((), {}, "", id="network"),
        # The pods' own agents have other command lines and are not the init process.
        pytest.param(("--own-agents",), {}, "killing_everything", id="network, own agents"),
        pytest.param((), {"connect": "exec"}, "", id="exec"),
    ],
)
async def test_suite_for_real_clusters_passes_on_the_fake_cluster(
    tmp_path: Path, options: tuple[str, ...], settings: dict[str, Any], deselected: str
) -> None:
    assert any(deselected in check.__name__ for check in CHECKS)
    build_reference(tmp_path)
    options = (*_AS_MANY_AS_ASKED, *options)
    async with ClusterProcess(tmp_path, images={_IMAGE: "reference"}, options=options) as cluster:
        kubeconfig = await kubeconfig_of_the_engine(cluster, tmp_path)
        suite = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/cluster", "-m", "cluster"),
            *(("-k", f"not {deselected}") if deselected else ()),
            cwd=_REPO,
            env={
                **os.environ,
                "KUBECONFIG": str(kubeconfig),
                "CLUSTER_IMAGE": _IMAGE,
                "CLUSTER_SET": json.dumps(settings),
            },
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            output, _ = await suite.communicate()
        finally:
            if suite.returncode is None:
                suite.kill()
                await suite.wait()
        assert suite.returncode == 0, output.decode(errors="replace")[-20_000:]
        await cluster.settled()
