"""What goes when its owner or its namespace goes."""

from __future__ import annotations

import asyncio
from typing import Any

from kubernetes import client
from kubernetes.client import CoreV1Api

from tests.builders.cluster_builders import configmap, do, eventually, fails
from tests.fakes.cluster import FakeCluster


def _owned(name: str, *owners: Any, block: bool = False, **metadata: Any) -> dict[str, Any]:
    references = [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "name": owner.metadata.name,
            "uid": owner.metadata.uid,
            "blockOwnerDeletion": block,
        }
        for owner in owners
    ]
    return configmap(name, ownerReferences=references, **metadata)


async def _left(core: CoreV1Api, *expected: str) -> None:
    """Wait until exactly these ConfigMaps are left, and see that it stays so."""

    async def names() -> list[str]:
        found = await do(core.list_namespaced_config_map, "default")
        return [one.metadata.name for one in found.items if one.metadata.name != "kube-root-ca.crt"]

    await eventually(names, list(expected))
    await asyncio.sleep(0.1)
    assert await names() == list(expected)


async def test_dependents_follow_their_owner_down_the_line(core: CoreV1Api) -> None:
    owner = await do(core.create_namespaced_config_map, "default", configmap("owner"))
    child = await do(core.create_namespaced_config_map, "default", _owned("child", owner))
    await do(core.create_namespaced_config_map, "default", _owned("grandchild", child))
    await do(core.delete_namespaced_config_map, "owner", "default")
    await _left(core)


async def test_another_living_owner_keeps_a_dependent(core: CoreV1Api) -> None:
    one = await do(core.create_namespaced_config_map, "default", configmap("one"))
    two = await do(core.create_namespaced_config_map, "default", configmap("two"))
    await do(core.create_namespaced_config_map, "default", _owned("child", one, two))
    await do(core.delete_namespaced_config_map, "one", "default")
    await _left(core, "child", "two")
    child = await do(core.read_namespaced_config_map, "child", "default")
    assert [reference.name for reference in child.metadata.owner_references] == ["two"]
    await do(core.delete_namespaced_config_map, "two", "default")
    await _left(core)


async def test_what_is_born_without_its_owner_does_not_stay(core: CoreV1Api) -> None:
    owner = await do(core.create_namespaced_config_map, "default", configmap("owner"))
    await do(core.delete_namespaced_config_map, "owner", "default")
    await do(core.create_namespaced_config_map, "default", _owned("late", owner))
    await _left(core)


async def test_orphans_stay_when_that_is_asked_for(core: CoreV1Api) -> None:
    owner = await do(core.create_namespaced_config_map, "default", configmap("owner"))
    await do(core.create_namespaced_config_map, "default", _owned("child", owner))
    await do(core.delete_namespaced_config_map, "owner", "default", propagation_policy="Orphan")
    await _left(core, "child")
    assert (await do(core.read_namespaced_config_map, "child", "default")).metadata.owner_references is None


async def test_foreground_waits_for_blocking_dependents(core: CoreV1Api) -> None:
    owner = await do(core.create_namespaced_config_map, "default", configmap("owner"))
    held = _owned("child", owner, block=True, finalizers=["test/hold"])
    await do(core.create_namespaced_config_map, "default", held)
    await do(core.delete_namespaced_config_map, "owner", "default", propagation_policy="Foreground")
    await _left(core, "child", "owner")
    waiting = await do(core.read_namespaced_config_map, "owner", "default")
    assert waiting.metadata.finalizers == ["foregroundDeletion"]
    assert (await do(core.read_namespaced_config_map, "child", "default")).metadata.deletion_timestamp
    await do(core.patch_namespaced_config_map, "child", "default", {"metadata": {"finalizers": None}})
    await _left(core)


async def test_a_namespace_ends_with_all_that_is_in_it(core: CoreV1Api) -> None:
    await do(core.create_namespace, {"metadata": {"name": "lab"}})
    made = await do(core.read_namespace, "lab")
    assert made.status.phase == "Active"
    await do(core.read_namespaced_service_account, "default", "lab")
    await do(core.create_namespaced_config_map, "lab", configmap("a", finalizers=["test/hold"]))
    await do(core.create_namespaced_config_map, "lab", configmap("b"))
    ending = await do(core.delete_namespace, "lab")
    assert "Terminating" in str(ending.status)
    error = await fails(403, core.create_namespaced_config_map, "lab", configmap("c"))
    assert "being terminated" in error.body

    async def names() -> list[str]:
        return [one.metadata.name for one in (await do(core.list_namespaced_config_map, "lab")).items]

    async def namespaces() -> bool:
        return "lab" in [one.metadata.name for one in (await do(core.list_namespace)).items]

    await eventually(names, ["a"])
    assert await namespaces()
    await do(core.patch_namespaced_config_map, "a", "lab", {"metadata": {"finalizers": None}})
    await eventually(namespaces, False)
    await fails(404, core.create_namespaced_config_map, "lab", configmap("c"))


async def test_pods_of_a_lease_go_with_it(
    cluster: FakeCluster, api: client.ApiClient, core: CoreV1Api
) -> None:
    leases = client.CoordinationV1Api(api)
    body = {"metadata": {"name": "run"}, "spec": {"holderIdentity": "me", "leaseDurationSeconds": 15}}
    lease = await do(leases.create_namespaced_lease, "default", body)
    reference = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "name": "run",
        "uid": lease.metadata.uid,
    }
    for number in range(3):
        pod = {
            "metadata": {"name": f"p{number}", "ownerReferences": [reference]},
            "spec": {"containers": [{"name": "main", "image": "x"}]},
        }
        await do(core.create_namespaced_pod, "default", pod)
    assert cluster.counters.pods_live == 3
    await do(leases.delete_namespaced_lease, "run", "default")
    await cluster.settled()
    assert (await do(core.list_namespaced_pod, "default")).items == []
