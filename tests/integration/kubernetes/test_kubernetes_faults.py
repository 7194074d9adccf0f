"""Kubernetes backend under lost responses, broken watches and lost sandboxes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from engine.config.kubernetes import KubernetesConfig
from engine.errors import (
    ImageError,
    SandboxDiedError,
    SandboxError,
    SandboxEvictedError,
    SandboxMemoryError,
    SandboxStartError,
)
from engine.sandbox.base import SandboxSpec
from engine.sandbox.kubernetes.api.client import KubeApi
from engine.sandbox.kubernetes.api.errors import ApiError
from engine.sandbox.kubernetes.backend import KubernetesBackend
from tests.builders.kubernetes_builders import NAMESPACE, SPEC, opened, prepared, until
from tests.fakes.cluster import FakeCluster, Fault, FaultKind


async def use(backend: KubernetesBackend, spec: SandboxSpec = SPEC) -> None:
    async with backend.open(spec) as box:
        assert (await box.exec("echo works", timeout_s=20)).stdout == b"works\n"


async def assert_created_once(home: Path, kind: FaultKind) -> None:
    async with prepared(home) as cluster, opened(cluster, request_timeout_s=1.0) as backend:
        fault = cluster.faults.add(Fault(kind, verbs={"create"}, resources={"pods"}, count=2))
        await use(backend)
        assert fault.hits >= 1
        assert cluster.counters.pods_created == 1


async def assert_they_come_and_go(home: Path, fault: Fault) -> None:
    copy = replace(fault, resources={"pods"})
    async with prepared(home) as cluster:
        cluster.faults.add(copy)
        async with opened(cluster, watch_silence_s=1.0, resync_s=1.0) as backend:
            for _ in range(2):
                await asyncio.gather(*(use(backend) for _ in range(4)))
            await until(lambda: backend.population().existing == 0)
        assert copy.hits > 0
        assert cluster.counters.pods_created == 8


@pytest.mark.parametrize("kind", [FaultKind.RESET, FaultKind.CREATED_BUT_ERROR])
async def test_pod_is_created_once_despite_failed_responses(cluster_home: Path, kind: FaultKind) -> None:
    await assert_created_once(cluster_home, kind)


@pytest.mark.parametrize(
    "fault",
    [Fault(FaultKind.DROP_WATCH, delay_s=0.1), Fault(FaultKind.GONE, count=3)],
    ids=lambda fault: fault.kind.value,
)
async def test_sandboxes_open_and_close_despite_watch_faults(cluster_home: Path, fault: Fault) -> None:
    await assert_they_come_and_go(cluster_home, fault)


async def test_missing_permission_fails_without_a_retry(cluster_home: Path) -> None:
    async with prepared(cluster_home) as cluster:
        stranger = str(cluster.kubeconfig_of_user("stranger"))
        async with opened(cluster, kubeconfig=stranger) as backend:
            with pytest.raises(ApiError) as refused:
                await use(backend)
        assert (refused.value.status, refused.value.starting) == (403, False)
        assert cluster.counters.codes[403] == 1


async def test_lost_sandbox_raises_the_error_of_its_cause(cluster_home: Path) -> None:
    losses: dict[Callable[[FakeCluster, str, str], None], type[SandboxError]] = {
        FakeCluster.evict: SandboxEvictedError,
        FakeCluster.kill_for_memory: SandboxMemoryError,
        FakeCluster.crash: SandboxDiedError,
    }
    async with prepared(cluster_home) as cluster, opened(cluster) as backend:
        for strike, kind in losses.items():
            async with backend.open(SPEC) as box:
                task = asyncio.ensure_future(box.exec("sleep 600", timeout_s=600))
                await asyncio.sleep(0.1)
                strike(cluster, NAMESPACE, box.id)
                with pytest.raises(kind) as raised:
                    await task
                assert type(raised.value) is kind
                with pytest.raises(kind):
                    await box.read_file("a.txt")
        await use(backend)


async def test_failed_start_reports_its_reason_and_the_next_one_succeeds(cluster_home: Path) -> None:
    async with prepared(cluster_home) as cluster, opened(cluster) as backend:
        with pytest.raises(ImageError, match="registry.test/missing:1"):
            await use(backend, replace(SPEC, image="registry.test/missing:1"))
        cluster.faults.add(Fault(FaultKind.START_FAILURE, count=1))
        with pytest.raises(SandboxStartError):
            await use(backend)
        with pytest.raises(SandboxStartError, match="no folder /nowhere"):
            await use(backend, replace(SPEC, workdir="/nowhere"))
        await use(backend)
        await until(lambda: backend.population().existing == 0)


async def test_exceeded_quota_delays_a_start(cluster_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.sandbox.kubernetes.fleet._QUOTA_PAUSE_S", 0.1)
    async with prepared(cluster_home) as cluster, opened(cluster) as backend:
        await set_quota(cluster, pods="1")
        waiting: asyncio.Task[None] | None = None
        async with backend.open(SPEC):
            waiting = asyncio.ensure_future(use(backend))
            await until(lambda: any("exceeded quota" in reason for reason in backend.blocked().values()))
        await waiting
        assert cluster.counters.pods_created == 2


async def set_quota(cluster: FakeCluster, **hard: str) -> None:
    api = await KubeApi.connect(KubernetesConfig(kubeconfig=str(cluster.kubeconfig)))
    path = f"/api/v1/namespaces/{NAMESPACE}/resourcequotas/trainyard-sandboxes"
    await api.patch(path, {"spec": {"hard": hard}})
    await api.close()
