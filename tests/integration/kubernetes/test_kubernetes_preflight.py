"""Preflight and network probes of the Kubernetes backend."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from engine.config.kubernetes import KubernetesConfig
from engine.config.sandbox import SandboxConfig
from engine.errors import PreflightError
from engine.sandbox.kubernetes import network
from engine.sandbox.kubernetes.backend import KubernetesBackend
from engine.sandbox.kubernetes.owner import leases_path
from engine.sandbox.preflight import preflight
from tests.builders.kubernetes_builders import (
    IMAGE,
    NAMESPACE,
    PATIENCE_S,
    SPEC,
    as_admin,
    opened,
    prepared,
)
from tests.fakes.cluster import FakeCluster, Fault, FaultKind, NodeSpec


async def test_preflight_passes_on_a_prepared_cluster_with_a_known_image(cluster: FakeCluster) -> None:
    async with opened(cluster, preflight_image=IMAGE) as backend:
        assert await preflight(backend) == []
    cluster.counters.reset()
    async with opened(cluster) as backend:
        (finding,) = await preflight(backend)
        assert finding.severity == "warning"
        assert "sandbox.kubernetes.preflight_image" in finding.message
        assert cluster.counters.pods_created == 1
        async with backend.open(SPEC):
            assert await preflight(backend) == []
    assert cluster.counters.pods_created == 5


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"nodes": []}, "no nodes available to schedule pods"),
        ({"scheduler": False}, "no scheduler has processed it"),
        ({}, "0/3 nodes are available"),
    ],
    ids=["no nodes", "no scheduler", "cordoned nodes"],
)
async def test_preflight_reports_that_no_node_accepts_pods(
    cluster_home: Path, options: dict[str, Any], why: str
) -> None:
    async with prepared(cluster_home, **options) as cluster:
        api = await as_admin(cluster)
        if not options:
            for number in range(3):
                await api.patch(f"/api/v1/nodes/node-{number}", {"spec": {"unschedulable": True}})
        async with opened(cluster, preflight_timeout_s=2.0, preflight_image=IMAGE) as backend:
            (finding,) = await preflight(backend)
        assert finding.severity == "error"
        assert why in finding.message
        assert (await api.list(leases_path(NAMESPACE)))["items"] == []
        await api.close()


async def test_preflight_reports_a_node_with_a_dead_kubelet(cluster_home: Path) -> None:
    async with prepared(cluster_home, nodes=[NodeSpec(name="only")], eviction_after_s=300.0) as cluster:
        cluster.kubelet.lost.add("only")
        async with opened(cluster, preflight_timeout_s=2.0) as backend:
            (finding,) = await preflight(backend)
        assert "Node only did not start a pod" in finding.message


async def test_preflight_releases_its_lease_when_its_pod_cannot_be_deleted(cluster: FakeCluster) -> None:
    fault = cluster.faults.add(Fault(FaultKind.CONFLICT, verbs={"delete"}, resources={"pods"}, count=1))
    api = await as_admin(cluster)
    async with opened(cluster) as backend:
        (found,) = await preflight(backend)
        assert "does not answer as it should" in found.message
        assert (await api.list(leases_path(NAMESPACE)))["items"] == []
    assert fault.hits == 1
    await api.close()


async def test_preflight_reports_missing_objects_quotas_and_permissions(cluster: FakeCluster) -> None:
    async with opened(cluster, max_live=5000, runtime_class="gvisor", priority_class="important") as backend:
        findings = await preflight(backend)
    assert any("Runtime class gvisor" in finding.message for finding in findings)
    assert any("Priority class important" in finding.message for finding in findings)
    quotas = [finding for finding in findings if "Quotas leave room for" in finding.message]
    assert [finding.severity for finding in quotas] == ["warning"]
    assert "Quotas leave room for 1024 of 5000 sandboxes" in quotas[0].message
    assert quotas[0].message.count(" used, room for ") > 1
    stranger = str(cluster.kubeconfig_of_user("stranger"))
    async with opened(cluster, kubeconfig=stranger, connect="exec") as backend:
        messages = [finding.message for finding in await preflight(backend) if "may not" in finding.message]
    assert len(messages) == 2
    assert "may not create pods, get pods" in messages[0]
    assert "kubectl apply -k deploy/kubernetes/sandbox and" in messages[0]
    assert "may not create pods/exec, get pods/exec" in messages[1]
    assert "kubectl apply -k deploy/kubernetes/sandbox/exec and" in messages[1]
    async with opened(cluster, kubeconfig=str(cluster.kubeconfig), namespace="elsewhere") as backend:
        findings = await preflight(backend)
    assert any("Namespace elsewhere does not exist" in finding.message for finding in findings)
    assert any("no network policy" in finding.message for finding in findings)


async def test_preflight_reports_a_missing_cluster_configuration(tmp_path: Path) -> None:
    config = KubernetesConfig(kubeconfig=str(tmp_path / "missing"))
    findings = await preflight(KubernetesBackend(SandboxConfig(backend="kubernetes", kubernetes=config)))
    assert len(findings) == 1
    assert "no usable cluster configuration" in findings[0].message


async def test_open_network_is_refused(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "_found", lambda _: ["10.96.0.1:443"])
    monkeypatch.setattr(network, "_SETTLE_S", 0.01)
    async with opened(cluster) as backend:
        for _ in range(2):
            with pytest.raises(PreflightError, match=r"10\.96\.0\.1:443"):
                async with backend.open(SPEC):
                    pass
    async with opened(cluster, require_network_policy=False) as backend, backend.open(SPEC):
        pass


async def test_pods_that_reach_each_other_are_refused(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "_REACH", "print('%s:%d' % (HOST, PORT))")
    monkeypatch.setattr(network, "_SETTLE_S", 0.01)
    async with opened(cluster) as backend, backend.open(SPEC) as first:
        address = backend._session.fleet.pods[first.id].address  # type: ignore[union-attr]
        for _ in range(2):
            with pytest.raises(PreflightError, match=address.replace(".", r"\.")):
                async with backend.open(SPEC):
                    pass
    async with (
        opened(cluster, require_network_policy=False) as backend,
        backend.open(SPEC),
        backend.open(SPEC),
    ):
        pass


async def test_pod_probes_are_repeated_until_a_pod_can_listen(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(cluster) as backend, backend.open(SPEC):
        with monkeypatch.context() as patched:
            patched.setattr(network, "_LISTEN", "raise SystemExit(1)")
            async with backend.open(SPEC):
                assert not backend._network._pods_done
        deadline = time.monotonic() + PATIENCE_S
        while not backend._network._pods_done:
            assert time.monotonic() < deadline
            async with backend.open(SPEC):
                pass
