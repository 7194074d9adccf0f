"""Warm pods, owners, reapers, exec and the number of requests of the Kubernetes backend."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from engine.config.kubernetes import KubernetesConfig
from engine.config.sandbox import SandboxConfig
from engine.errors import SandboxEvictedError, SandboxMemoryError, SandboxStartError
from engine.sandbox.base import SandboxLimits
from engine.sandbox.kubernetes.api.client import KubeApi
from engine.sandbox.kubernetes.backend import KubernetesBackend
from engine.sandbox.kubernetes.manifests import labels
from engine.sandbox.kubernetes.manifests.preload import daemon_set
from engine.sandbox.kubernetes.owner import leases_path
from engine.sandbox.preflight import preflight
from tests.builders.kubernetes_builders import (
    IMAGE,
    MANIFESTS,
    NAMESPACE,
    PATIENCE_S,
    SPEC,
    apply,
    as_admin,
    documents,
    kubernetes_config,
    opened,
    prepared,
    until,
    until_async,
)
from tests.fakes.cluster import FakeCluster, Fault, FaultKind, NodeSpec

REPO = Path(__file__).parents[3]
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"

_OWNER = """
import asyncio, json, sys
from pathlib import Path
from engine.config.sandbox import SandboxConfig
from engine.sandbox.kubernetes.backend import KubernetesBackend
from tests.builders.kubernetes_builders import IMAGE, SPEC

async def hold(backend):
    async with backend.open(SPEC) as box:
        held.append(box.id)
        await box.exec("sleep 600", timeout_s=600)

async def main():
    backend = KubernetesBackend(SandboxConfig.model_validate_json(sys.argv[1]))
    await backend.prepare({IMAGE: 1})
    tasks = [asyncio.ensure_future(hold(backend)) for _ in range(2)]
    while len(held) < 2 or backend.population().existing < 2:
        await asyncio.sleep(0.05)
    await backend.prepare({IMAGE: 1})
    while backend.population().idle < 1:
        await asyncio.sleep(0.05)
    print(json.dumps(held), flush=True)
    await asyncio.gather(*tasks)

held = []
asyncio.run(main())
"""


# --- requests ------------------------------------------------------------------------------------------


async def test_cold_sandbox_needs_two_api_writes_and_a_warm_one_three(cluster: FakeCluster) -> None:
    async with opened(cluster, heartbeat_s=20.0, owner_timeout_s=60.0) as backend:
        async with backend.open(SPEC):
            pass
        await until(lambda: backend.population().existing == 0)
        cluster.counters.reset()
        async with backend.open(SPEC) as box:
            assert not box.startup.warm
        await until(lambda: backend.population().existing == 0)
        assert cluster.counters.writes == 2
        assert cluster.counters.reads == 0
        cluster.counters.reset()
        await backend.prepare({IMAGE: 1})
        await until(lambda: backend.population().idle == 1)
        async with backend.open(SPEC) as box:
            assert box.startup.warm
            assert box.startup.node
            pod = await backend._session.api.get(f"{PODS}/{box.id}")  # type: ignore[union-attr]
            assert pod["metadata"]["labels"][labels.RUN_ID] == "run-1"
            assert pod["metadata"]["annotations"][labels.SAFE_TO_EVICT] == "false"
            await box.write_file("a.txt", b"changed\n")
            assert "+changed" in await box.diff()
        await until(lambda: backend.population().existing == 0)
        assert cluster.counters.writes == 3


# --- warm pods -----------------------------------------------------------------------------------------


async def test_warm_pods_follow_demand_within_the_limits(cluster: FakeCluster) -> None:
    cluster.registry.add("registry.test/other:1", "reference")
    async with opened(cluster, max_live=4, warm_per_image=3) as backend:
        await backend.prepare({IMAGE: 10})
        await until(lambda: backend.population().idle == 3)
        await backend.prepare({"registry.test/other:1": 2, IMAGE: 1})
        await until(lambda: backend.population().idle == 3 and backend.population().existing == 3)
        await backend.prepare({"registry.test/other:1": 9, IMAGE: 9})
        await until(lambda: backend.population().idle == 4)
        smaller = replace(SPEC, limits=replace(SPEC.limits, memory_mb=64))
        async with backend.open(smaller) as box:  # no warm pod fits, so one is removed
            assert not box.startup.warm
            await until(lambda: backend.population().existing <= 4)
        assert cluster.counters.pods_peak <= 4
        await backend.prepare({})
        await until(lambda: backend.population().existing == 0)


async def test_open_waits_for_a_warm_pod_that_is_starting(cluster: FakeCluster) -> None:
    async with opened(cluster) as backend:
        await backend.prepare({IMAGE: 2})
        await until(lambda: backend.population().existing == 2)
        async with backend.open(SPEC) as first, backend.open(SPEC) as second:
            assert first.startup.warm
            assert second.startup.warm
        assert cluster.counters.pods_created == 2


async def test_lost_warm_pod_is_not_handed_out(cluster: FakeCluster) -> None:
    async with opened(cluster, warm_idle_s=2.0) as backend:
        await backend.prepare({IMAGE: 1})
        await until(lambda: backend.population().idle == 1)
        cluster.faults.add(Fault(FaultKind.SERVER_ERROR, verbs={"patch"}, resources={"pods"}, count=1))
        lost = next(iter(backend._session.fleet.pods))  # type: ignore[union-attr]
        cluster.evict(NAMESPACE, lost)
        async with backend.open(SPEC) as box:
            assert box.id != lost
        await backend.prepare({IMAGE: 1})
        await until(lambda: backend.population().idle == 1)
        await until(lambda: backend.population().existing == 0)  # it was idle for too long


async def test_failing_image_is_not_warmed_repeatedly(cluster: FakeCluster) -> None:
    async with opened(cluster) as backend:
        await backend.prepare({"registry.test/missing:1": 4})
        await until(lambda: cluster.counters.pods_created >= 1 and backend.population().existing == 0)
        created = cluster.counters.pods_created
        async with backend.open(SPEC):  # its end frees a place for warm pods
            pass
        await until(lambda: backend.population().existing == 0)
        assert cluster.counters.pods_created == created + 1 <= 5


# --- owners and reapers --------------------------------------------------------------------------------


async def test_owner_lease_is_renewed_and_protects_its_pods(cluster: FakeCluster) -> None:
    async with opened(cluster) as backend, backend.open(SPEC) as box:
        api = await as_admin(cluster)
        try:
            path = leases_path(NAMESPACE)
            before = (await api.list(path))["items"][0]["spec"]["renewTime"]
            await until_async(lambda: _renewed(api, path, before))
            assert await backend.reap() == 0
            assert (await box.exec("echo alive", timeout_s=20)).stdout == b"alive\n"
        finally:
            await api.close()
    assert backend._session is None


async def _renewed(api: KubeApi, path: str, before: str) -> bool:
    return bool((await api.list(path))["items"][0]["spec"]["renewTime"] > before)


async def test_killed_owner_leaves_no_running_pods_and_a_reaper_removes_them(cluster: FakeCluster) -> None:
    config = SandboxConfig(
        backend="kubernetes",
        kubernetes=kubernetes_config(cluster),
        memory_mb=SPEC.limits.memory_mb,
        processes=SPEC.limits.processes,
        disk_mb=SPEC.limits.disk_mb,
    )
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _OWNER, config.model_dump_json(), cwd=REPO, stdout=subprocess.PIPE
    )
    try:
        assert owner.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            assert len(json.loads(await owner.stdout.readline())) == 2
        assert cluster.counters.pods_live == 3
        reaper = KubernetesBackend(config)
        assert await reaper.reap() == 0
        owner.send_signal(signal.SIGKILL)
        await owner.wait()
        await until(lambda: cluster.counters.pods_live == 0)  # agents exit when their connection closes
        assert await reaper.reap(run_id="another") == 0
        removed = 0
        deadline = time.monotonic() + PATIENCE_S
        while removed < 3 and time.monotonic() < deadline:
            removed += await reaper.reap()
            await asyncio.sleep(0.2)
        assert removed == 3
        api = await as_admin(cluster)
        assert (await api.list(leases_path(NAMESPACE)))["items"] == []
        await until_async(lambda: _no_pods_left(api))
        await api.close()
    finally:
        if owner.returncode is None:
            owner.kill()
            await owner.wait()


async def _no_pods_left(api: KubeApi) -> bool:
    return not (await api.list(PODS))["items"]


async def test_reaper_removes_only_pods_past_their_deadline(cluster: FakeCluster) -> None:
    async with opened(cluster) as backend, backend.open(SPEC) as old, backend.open(SPEC) as young:
        api = await as_admin(cluster)
        await api.patch(f"{PODS}/{old.id}", {"metadata": {"annotations": {labels.DEADLINE: "1000"}}})
        assert await backend.reap(run_id="another") == 0
        assert await backend.reap(run_id="run-1") == 1
        with pytest.raises(SandboxEvictedError):
            await old.exec("sleep 600", timeout_s=600)
        assert (await young.exec("echo alive", timeout_s=20)).stdout == b"alive\n"
        await api.close()


async def test_unused_agents_of_old_versions_are_removed(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = await as_admin(cluster)
    maps, leases = f"/api/v1/namespaces/{NAMESPACE}/configmaps", leases_path(NAMESPACE)
    old = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "old", "labels": dict(labels.COMMON)},
    }
    await api.create(maps, old)

    async def agents() -> set[str]:
        config_maps = await api.list(maps, labelSelector=labels.selector(labels.OURS))
        return {agent["metadata"]["name"] for agent in config_maps["items"]}

    async with opened(cluster) as backend, backend.open(SPEC) as box:
        old_and_new = await agents()
        await backend.reap()
        assert await agents() == old_and_new, "it is young"
        monkeypatch.setattr("engine.sandbox.kubernetes.reaper._AGENT_AGE_S", -60.0)
        lease = (await api.list(leases))["items"][0]["metadata"]
        for used_by in ("old", None):  # an owner uses the old agent, or names none
            await api.patch(f"{leases}/{lease['name']}", {"metadata": {"labels": {labels.AGENT: used_by}}})
            await backend.reap()
            assert await agents() == old_and_new
        await api.patch(f"{leases}/{lease['name']}", {"metadata": {"labels": lease["labels"]}})
        await backend.reap()
        assert await agents() == old_and_new - {"old"}
        assert (await box.exec("echo alive", timeout_s=20)).stdout == b"alive\n"
        async with backend.open(SPEC):
            pass
    await api.close()


async def test_reaping_works_without_permission_to_remove_old_agents(cluster: FakeCluster) -> None:
    fault = Fault(FaultKind.FORBIDDEN, verbs={"list"}, resources={"configmaps"})
    cluster.faults.add(fault)
    async with opened(cluster) as backend:
        assert await backend.reap() == 0
    assert fault.hits == 1


# --- pods/exec -----------------------------------------------------------------------------------------


async def test_agent_is_reached_by_exec_without_a_route_to_pods(cluster: FakeCluster) -> None:
    async with opened(cluster, connect="exec", preflight_image=IMAGE) as backend:
        assert "may not create pods/exec, get pods/exec" in (await preflight(backend))[0].message
        api = await as_admin(cluster)
        await apply(api, MANIFESTS / "exec")
        await api.close()
        assert [finding.severity for finding in await preflight(backend)] == ["warning"]
        async with backend.open(SPEC) as box:
            content = bytes(range(256)) * 20_000
            await box.write_file("big", content)
            assert await box.read_file("big") == content
            result = await box.exec("rm big; echo new > a.txt; echo out; sleep 600", timeout_s=2)
            assert (result.timed_out, result.stdout) == (True, b"out\n")
            assert "+new" in await box.diff()
            cluster.kill_for_memory(NAMESPACE, box.id)
            with pytest.raises(SandboxMemoryError):
                await box.exec("sleep 600", timeout_s=600)


# --- users -------------------------------------------------------------------------------------------


async def test_pods_of_one_user_have_separate_process_limits(cluster_home: Path) -> None:
    nodes = [NodeSpec(name="only", cpu="64", memory="64Gi")]
    script = "for n in 1 2 3 4 5 6; do sleep 30 & done; echo works"
    async with (
        prepared(cluster_home, nodes=nodes) as cluster,
        opened(cluster, run_as_user=1000) as backend,
        contextlib.AsyncExitStack() as stack,
    ):
        spec = replace(SPEC, limits=replace(SPEC.limits, processes=16))
        boxes = [await stack.enter_async_context(backend.open(spec)) for _ in range(6)]
        results = await asyncio.gather(*(box.exec(script, timeout_s=20) for box in boxes))
        assert [(result.stdout, result.stderr) for result in results] == [(b"works\n", b"")] * 6


async def test_restricted_namespace_accepts_only_non_root_sandboxes(cluster: FakeCluster) -> None:
    api = await as_admin(cluster)
    (namespace,) = documents(MANIFESTS / "restricted")
    await api.patch(f"/api/v1/namespaces/{NAMESPACE}", {"metadata": namespace["metadata"]})
    await api.close()
    async with opened(cluster) as backend:
        (finding,) = await preflight(backend)
        assert finding.severity == "error"
        assert 'violates PodSecurity "restricted:latest": runAsNonRoot != true' in finding.message
        with pytest.raises(SandboxStartError, match="runAsNonRoot != true"):
            async with backend.open(SPEC):
                pass
    async with opened(cluster, run_as_non_root=True, run_as_user=1000, preflight_image=IMAGE) as backend:
        assert await preflight(backend) == []
        async with backend.open(SPEC) as box:
            assert (await box.exec("id -u", timeout_s=20)).stdout == b"1000\n"


# --- images --------------------------------------------------------------------------------------------


async def test_preloading_pulls_an_image_on_every_node_and_satisfies_preflight(cluster: FakeCluster) -> None:
    reference = "registry.test/demo:1"
    cluster.registry.add(reference, "reference", pull_s=0.05)
    api = await as_admin(cluster)
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets"
    await api.create(path, daemon_set(KubernetesConfig(namespace=NAMESPACE), [reference]))
    nodes = [f"node-{number}" for number in range(3)]
    await until(lambda: all(reference in cluster.kubelet.node_images(node).present for node in nodes))
    async with opened(cluster) as backend:
        await until_async(lambda: _preflight_passes(backend))
        assert await backend.reap() == 0
        async with backend.open(replace(SPEC, image=reference)) as box:
            assert box.startup.pull == 0
    await api.delete(f"{path}/trainyard-preload")
    await api.close()


async def _preflight_passes(backend: KubernetesBackend) -> bool:
    return await preflight(backend) == []


def test_pool_key_depends_on_image_and_limits_but_not_on_lifetime() -> None:
    from engine.sandbox.kubernetes.manifests.spec import pool_key

    base = SandboxLimits()
    assert pool_key("a", base) == pool_key("a", replace(base, lifetime_s=5.0))
    assert len({pool_key("a", base), pool_key("b", base), pool_key("a", replace(base, disk_mb=1000))}) == 3
