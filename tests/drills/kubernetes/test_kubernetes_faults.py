"""The Kubernetes backend under faults of API servers, watches, nodes and images."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from engine.config.kubernetes import KubernetesConfig
from engine.errors import (
    SandboxError,
    SandboxEvictedError,
    SandboxStartError,
    SandboxStartTimeoutError,
)
from engine.sandbox.kubernetes import network
from engine.sandbox.kubernetes.api.client import KubeApi
from engine.sandbox.kubernetes.backend import KubernetesBackend
from engine.sandbox.preflight import preflight
from tests.builders.kubernetes_builders import (
    IMAGE,
    MANIFESTS,
    NAMESPACE,
    SPEC,
    apply,
    opened,
    prepared,
    until,
)
from tests.fakes.cluster import FakeCluster, Fault, FaultKind, NodeSpec
from tests.integration.kubernetes.test_kubernetes_faults import (
    assert_created_once,
    assert_they_come_and_go,
    use,
)

# --- the API server ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    [
        FaultKind.TOO_MANY_REQUESTS,
        FaultKind.SERVER_ERROR,
        FaultKind.CONFLICT,
        FaultKind.HANG,
        FaultKind.HALF_OPEN,
        FaultKind.CREATED_BUT_RESET,
    ],
)
async def test_pod_is_created_once_despite_api_faults(cluster_home: Path, kind: FaultKind) -> None:
    await assert_created_once(cluster_home, kind)


@pytest.mark.parametrize(
    "kind", [FaultKind.TOO_MANY_REQUESTS, FaultKind.SERVER_ERROR, FaultKind.HANG, FaultKind.CREATED_BUT_RESET]
)
async def test_pod_is_deleted_despite_api_faults(cluster_home: Path, kind: FaultKind) -> None:
    async with prepared(cluster_home) as cluster, opened(cluster, request_timeout_s=1.0) as backend:
        fault = cluster.faults.add(Fault(kind, verbs={"delete"}, resources={"pods"}, count=2))
        await use(backend)
        await until(lambda: backend.population().existing == 0)
        assert fault.hits >= 1
        assert cluster.counters.pods_live == 0


@pytest.mark.parametrize("connect", ["network", "exec"])
async def test_forbidden_requests_are_retried_if_they_were_allowed_before(
    cluster_home: Path, connect: str
) -> None:
    async with prepared(cluster_home) as cluster, opened(cluster, connect=connect) as backend:
        await allow_exec(cluster)
        await use(backend)
        verbs = ("create", "delete", "create/exec", "get/exec", "patch")
        fault = Fault(FaultKind.FORBIDDEN, verbs={verb.partition("/")[0] for verb in verbs}, count=6)
        cluster.faults.add(fault)
        await use(backend)
        await until(lambda: backend.population().existing == 0)
        assert fault.hits == 6
        assert cluster.counters.pods_created == 2


async def test_forbidden_requests_are_retried_after_a_successful_preflight(cluster_home: Path) -> None:
    async with prepared(cluster_home) as cluster, opened(cluster) as backend:
        assert await missing(backend) == []
        fault = cluster.faults.add(Fault(FaultKind.FORBIDDEN, count=8))
        await use(backend)
        assert fault.hits == 8


async def test_preflight_creates_one_pod_despite_an_api_error(cluster_home: Path) -> None:
    async with prepared(cluster_home) as cluster, opened(cluster) as backend:
        fault = Fault(FaultKind.CREATED_BUT_ERROR, verbs={"create"}, resources={"pods"}, count=1)
        cluster.faults.add(fault)
        assert await missing(backend) == []
        assert (fault.hits, cluster.counters.pods_created) == (1, 1)


async def test_preflight_retries_forbidden_access_reviews(cluster_home: Path) -> None:
    async with prepared(cluster_home) as cluster, opened(cluster) as backend:
        reviews = {"selfsubjectaccessreviews"}
        fault = cluster.faults.add(Fault(FaultKind.FORBIDDEN, resources=reviews, count=3))
        assert await missing(backend) == []
        assert fault.hits == 3


async def missing(backend: KubernetesBackend) -> list[str]:
    return [finding.message for finding in await preflight(backend) if finding.severity == "error"]


async def test_failing_network_probe_raises_sandbox_start_error(
    cluster_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with prepared(cluster_home) as cluster, opened(cluster) as backend:
        with monkeypatch.context() as patched:
            patched.setattr(network, "_PROBE", "raise SystemExit('no more memory')")
            with pytest.raises(SandboxStartError, match="probe failed: no more memory"):
                await use(backend)
        await use(backend)


@pytest.mark.parametrize("accepted", ["application/json", "text/plain"])
async def test_rejected_exec_stream_fails_at_once(
    cluster_home: Path, accepted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    credentials = KubeApi._credentials

    async def picky(self: KubeApi) -> dict[str, str]:
        return {**await credentials(self), "Accept": accepted}

    monkeypatch.setattr(KubeApi, "_credentials", picky)
    async with prepared(cluster_home) as cluster, opened(cluster, connect="exec") as backend:
        await allow_exec(cluster)
        with pytest.raises(SandboxStartError, match="406"):
            await use(backend)
        assert cluster.counters.requests["get", "pods/exec"] <= 2


async def allow_exec(cluster: FakeCluster) -> None:
    api = await KubeApi.connect(KubernetesConfig(kubeconfig=str(cluster.kubeconfig)))
    try:
        await apply(api, MANIFESTS / "exec")
    finally:
        await api.close()


async def test_cancelled_start_leaves_no_pod(cluster_home: Path) -> None:
    async with prepared(cluster_home) as cluster, opened(cluster) as backend:
        await use(backend)
        for kind in (FaultKind.SLOW, FaultKind.CREATED_BUT_RESET):
            cluster.faults.add(Fault(kind, verbs={"create"}, resources={"pods"}, delay_s=0.5))
            task = asyncio.ensure_future(use(backend))
            await asyncio.sleep(0.25)
            task.cancel()
            await asyncio.wait([task])
            cluster.faults.clear()
        await asyncio.sleep(0.6)
        await until(lambda: cluster.counters.pods_live == 0 and backend.population().existing == 0)


# --- the watch -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        Fault(FaultKind.HALF_OPEN, verbs={"watch"}, count=3),
        Fault(FaultKind.HANG, verbs={"watch"}, count=2),
        Fault(FaultKind.SERVER_ERROR, verbs={"watch"}, count=3),
        Fault(FaultKind.STALE_LIST, behind=50),
        Fault(FaultKind.DUPLICATE),
        Fault(FaultKind.SLOW, delay_s=0.2, resources={"pods"}),
    ],
    ids=lambda fault: fault.kind.value,
)
async def test_sandboxes_start_and_end_despite_watch_faults(cluster_home: Path, fault: Fault) -> None:
    await assert_they_come_and_go(cluster_home, fault)


async def test_stale_list_neither_ends_nor_revives_sandboxes(cluster_home: Path) -> None:
    async with prepared(cluster_home) as cluster, opened(cluster, resync_s=0.3) as backend:
        async with backend.open(SPEC) as box:
            stale = cluster.faults.add(Fault(FaultKind.STALE_LIST, resources={"pods"}, behind=1000))
            drop = cluster.faults.add(Fault(FaultKind.DROP_WATCH, resources={"pods"}, delay_s=0.1))
            await until(lambda: stale.hits >= 3 and drop.hits >= 3)
            assert (await box.exec("echo alive", timeout_s=20)).stdout == b"alive\n"
            assert backend.population().existing == 1
        await until(lambda: backend.population().existing == 0)


# --- pods and nodes ------------------------------------------------------------------------------------


async def test_deletion_of_a_pod_by_others_raises_sandbox_evicted_error(cluster_home: Path) -> None:
    async with prepared(cluster_home) as cluster, opened(cluster) as backend, backend.open(SPEC) as box:
        task = asyncio.ensure_future(box.exec("sleep 600", timeout_s=600))
        await asyncio.sleep(0.1)
        assert await backend.reap() == 0
        pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
        assert backend._session is not None
        await backend._session.api.delete(f"{pods}/{box.id}", grace_s=0)
        with pytest.raises(SandboxEvictedError):
            await task


async def test_a_lost_node_ends_its_sandboxes(cluster_home: Path) -> None:
    nodes = [NodeSpec(name="only")]
    async with (
        prepared(cluster_home, nodes=nodes) as cluster,
        opened(cluster, stuck_terminating_s=0.5) as backend,
    ):
        async with backend.open(SPEC) as box:
            cluster.nodes.lose("only")
            with pytest.raises(SandboxEvictedError):
                await box.exec("sleep 600", timeout_s=600)
        cluster.faults.clear()


async def test_pod_stuck_in_termination_is_deleted_by_force(cluster_home: Path) -> None:
    async with prepared(cluster_home) as cluster, opened(cluster, stuck_terminating_s=0.5) as backend:
        cluster.faults.add(Fault(FaultKind.STUCK_TERMINATING, delay_s=6.0, count=1))
        await use(backend)
        await until(lambda: backend.population().existing == 0)
        assert backend._session is not None
        assert backend._session.fleet.stuck == 1


# --- scheduling ----------------------------------------------------------------------------------------


async def test_unschedulable_pod_is_reported_and_times_out(cluster_home: Path) -> None:
    nodes = [NodeSpec(name="full", cpu="100m")]
    async with (
        prepared(cluster_home, nodes=nodes) as cluster,
        opened(cluster, schedule_timeout_s=3.0) as backend,
    ):
        task = asyncio.ensure_future(use(backend))
        await until(lambda: bool(backend.blocked()))
        assert "nodes are available" in next(iter(backend.blocked().values()))
        with pytest.raises(SandboxStartTimeoutError, match="Unschedulable"):
            await task


# --- everything at once --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
async def test_random_faults_neither_leak_nor_duplicate_pods(cluster_home: Path, seed: int) -> None:
    async with prepared(cluster_home, seed=seed) as cluster:
        verbs = {"create", "delete", "patch", "get"}
        for kind in (FaultKind.SERVER_ERROR, FaultKind.TOO_MANY_REQUESTS, FaultKind.CREATED_BUT_ERROR):
            cluster.faults.add(Fault(kind, verbs=verbs, resources={"pods"}, probability=0.08))
        cluster.faults.add(Fault(FaultKind.DROP_WATCH, delay_s=0.5, probability=0.5))
        cluster.faults.add(Fault(FaultKind.DUPLICATE, probability=0.3))
        cluster.faults.add(Fault(FaultKind.EVICT, delay_s=0.2, probability=0.1))
        cluster.faults.add(Fault(FaultKind.STALE_LIST, probability=0.5))
        async with opened(cluster, max_live=6, resync_s=2.0, request_timeout_s=2.0) as backend:
            await backend.prepare({IMAGE: 3})
            slots = asyncio.Semaphore(6)

            async def rollout() -> int:
                tries = 0
                while True:
                    tries += 1
                    with contextlib.suppress(SandboxError):
                        async with slots:
                            await use(backend)
                        return tries

            tries = await asyncio.gather(*(rollout() for _ in range(16)))
            assert cluster.counters.pods_peak <= 6 * 1.1 + 1e-9
            assert cluster.counters.pods_created <= sum(tries) + 3
        await until(lambda: cluster.counters.pods_live == 0)
