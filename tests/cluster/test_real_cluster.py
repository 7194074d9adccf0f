"""The conformance suite and the lifecycle on a real cluster: ``make test-cluster KUBECONFIG=… IMAGE=…``.

The image must contain ``engine.sandbox.conformance.reference_tree`` in ``/testbed``, with Python and git;
``tests/cluster/README.md`` describes how to build it. The namespace must have been prepared with
``deploy/kubernetes/sandbox``. ``CLUSTER_SET`` contains further settings of ``sandbox.kubernetes`` as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from engine.config.kubernetes import KubernetesConfig
from engine.config.sandbox import SandboxConfig
from engine.errors import ImageError
from engine.sandbox.base import SandboxLimits, SandboxSpec
from engine.sandbox.conformance import CHECKS, Subject
from engine.sandbox.conformance.subject import SECRET
from engine.sandbox.kubernetes.backend import KubernetesBackend
from engine.sandbox.preflight import preflight

KUBECONFIG, IMAGE = os.environ.get("KUBECONFIG", ""), os.environ.get("CLUSTER_IMAGE", "")
SETTINGS = {
    "kubeconfig": KUBECONFIG,
    "cpu_request": 0.05,
    **json.loads(os.environ.get("CLUSTER_SET") or "{}"),
}
LIMITS = SandboxLimits(memory_mb=256, processes=256, disk_mb=1024)
NOT_OBSERVABLE = {
    "there_are_no_privileges": "images decide who their user is",
    "nothing_of_the_host_is_visible": "an image has its own /etc, /root and /sys",
    "there_is_no_network": "a pod has an interface; the network probe of the first sandbox stands for it",
    "a_memory_bomb_stays_inside": "the kubelet may end the whole container, which is a typed error",
    "a_fork_bomb_stays_inside": "processes are limited by the kubelet's podPidsLimit",
    "a_full_disk_stays_inside": "the kubelet evicts instead of refusing to write",
}
"""Checks of properties that only a cluster's nodes determine, and the reason to skip each."""
if SETTINGS.get("connect") == "exec":
    NOT_OBSERVABLE["killing_everything_hurts_only_the_killer"] = "agents are no init with connect=exec"

CONFIG = SandboxConfig(
    backend="kubernetes",
    kubernetes=KubernetesConfig.model_validate(SETTINGS),
    max_live=40,
    max_starting=16,
    memory_mb=LIMITS.memory_mb,
    processes=LIMITS.processes,
    disk_mb=LIMITS.disk_mb,
)
_START_S = (
    CONFIG.kubernetes.schedule_timeout_s
    + CONFIG.kubernetes.pull_timeout_s
    + CONFIG.kubernetes.start_timeout_s
)
"""Longest legitimate start of one sandbox, seconds."""

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(2 * _START_S + 600),
    pytest.mark.skipif(
        not KUBECONFIG or not IMAGE, reason="needs a cluster: make test-cluster KUBECONFIG=… IMAGE=…"
    ),
]


@pytest.fixture
async def backend() -> AsyncIterator[KubernetesBackend]:
    backend = KubernetesBackend(CONFIG)
    yield backend
    await backend.close()


@pytest.fixture(scope="module")
def uid() -> int:
    """User ID of the image's commands."""

    async def ask() -> int:
        backend = KubernetesBackend(CONFIG)
        try:
            async with backend.open(SandboxSpec(image=IMAGE, run_id="test-cluster", limits=LIMITS)) as box:
                return int((await box.exec("id -u", timeout_s=30)).stdout)
        finally:
            await backend.close()

    return asyncio.run(ask())


async def test_preflight_reports_no_errors(backend: KubernetesBackend) -> None:
    assert [finding for finding in await preflight(backend) if finding.severity == "error"] == []


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_conformance(
    check: Callable[[Subject], Awaitable[None]],
    backend: KubernetesBackend,
    uid: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if check.__name__ in NOT_OBSERVABLE:
        pytest.skip(NOT_OBSERVABLE[check.__name__])
    (tmp_path / "secret").write_text(SECRET)
    monkeypatch.setenv("HOST_SECRET", SECRET)
    secret = tmp_path / "secret"
    await check(Subject(backend=backend, image=IMAGE, secret_file=secret, uid=uid, limits=LIMITS))


async def test_too_many_processes_end_the_command_and_nothing_else(backend: KubernetesBackend) -> None:
    bomb = f"n=0; while [ $n -lt {4 * LIMITS.processes} ]; do sleep 600 & n=$((n+1)); done; wait"
    spec = SandboxSpec(image=IMAGE, run_id="test-cluster", limits=LIMITS)
    async with backend.open(spec) as neighbour, backend.open(spec) as box:
        result = await box.exec(bomb, timeout_s=300)
        assert result.exit_code not in (0, None), result
        for sandbox in (neighbour, box):
            assert (await sandbox.exec("sleep 1 & wait; echo works", timeout_s=30)).stdout == b"works\n"


async def test_warm_pods_are_claimed_and_nothing_is_left(backend: KubernetesBackend) -> None:
    spec = SandboxSpec(image=IMAGE, run_id="test-cluster", limits=LIMITS)
    await backend.prepare({IMAGE: 4})
    deadline = time.monotonic() + _START_S
    while backend.population().idle < 4:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.5)
    async with backend.open(spec) as box:
        assert box.startup.warm
        assert (await box.exec("echo works", timeout_s=30)).stdout == b"works\n"
    await backend.prepare({})
    while backend.population().existing:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.5)
    assert await backend.reap(run_id="test-cluster") == 0


async def test_missing_image_raises_image_error(backend: KubernetesBackend) -> None:
    with pytest.raises(ImageError):
        async with backend.open(
            SandboxSpec(image=f"{IMAGE.partition('@')[0]}-does-not-exist", limits=LIMITS)
        ):
            pass
