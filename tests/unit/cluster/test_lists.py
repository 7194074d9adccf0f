"""Lists: selectors, pages, versions, deletecollection."""

from __future__ import annotations

import json

import pytest
from kubernetes.client import CoreV1Api

from tests.builders.cluster_builders import configmap, do, fails, pod
from tests.fakes.cluster import FakeCluster


async def _fill(core: CoreV1Api, count: int) -> None:
    for number in range(count):
        labels = {"parity": "odd" if number % 2 else "even", "number": str(number)}
        await do(core.create_namespaced_config_map, "kube-public", configmap(f"c{number:02}", labels))


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("number=1", ["c01"]),
        ("number==1", ["c01"]),
        ("parity=odd,number!=1", ["c03", "c05"]),
        ("number in (0, 4)", ["c00", "c04"]),
        ("parity,number notin (0,1,2,3)", ["c04", "c05"]),
        ("!parity", ["kube-root-ca.crt"]),
        ("parity=even,number in (1)", []),
    ],
)
async def test_label_selectors(core: CoreV1Api, selector: str, expected: list[str]) -> None:
    await _fill(core, 6)
    found = await do(core.list_namespaced_config_map, "kube-public", label_selector=selector)
    assert [one.metadata.name for one in found.items] == expected


async def test_field_selectors(core: CoreV1Api) -> None:
    for name in ("a", "b"):
        await do(core.create_namespaced_pod, "default", pod(name))
    await do(core.patch_namespaced_pod_status, "b", "default", {"status": {"phase": "Failed"}})
    for selector, expected in (
        ("metadata.name=a", ["a"]),
        ("status.phase=Failed", ["b"]),
        ("status.phase!=Failed", ["a"]),
        ("spec.nodeName=", ["a", "b"]),
    ):
        found = await do(core.list_pod_for_all_namespaces, field_selector=selector)
        assert [one.metadata.name for one in found.items] == expected, selector
    error = await fails(400, core.list_namespaced_pod, "default", field_selector="spec.hostname=x")
    assert "field label not supported" in json.loads(error.body)["message"]
    await fails(400, core.list_namespaced_pod, "default", label_selector="a b c")


async def test_pages_show_the_world_of_the_first_one(core: CoreV1Api) -> None:
    await _fill(core, 7)
    first = await do(core.list_namespaced_config_map, "kube-public", limit=3)
    assert first.metadata.remaining_item_count == 5
    await do(core.delete_namespaced_config_map, "c05", "kube-public")
    await do(core.create_namespaced_config_map, "kube-public", configmap("c03-late"))
    names = [one.metadata.name for one in first.items]
    token = first.metadata._continue
    while token:
        page = await do(core.list_namespaced_config_map, "kube-public", limit=3, _continue=token)
        assert page.metadata.resource_version == first.metadata.resource_version
        names += [one.metadata.name for one in page.items]
        token = page.metadata._continue
    assert names == [f"c{number:02}" for number in range(7)] + ["kube-root-ca.crt"]


async def test_a_page_of_a_forgotten_world_is_410(cluster: FakeCluster, core: CoreV1Api) -> None:
    await _fill(core, 4)
    first = await do(core.list_namespaced_config_map, "kube-public", limit=3)
    await do(core.delete_namespaced_config_map, "c03", "kube-public")
    cluster.store.compact()
    error = await fails(
        410, core.list_namespaced_config_map, "kube-public", limit=3, _continue=first.metadata._continue
    )
    assert json.loads(error.body)["reason"] == "Expired"


async def test_lists_of_an_exact_version(core: CoreV1Api) -> None:
    await _fill(core, 2)
    before = (await do(core.list_config_map_for_all_namespaces)).metadata.resource_version
    await do(core.delete_namespaced_config_map, "c00", "kube-public")
    then = await do(
        core.list_namespaced_config_map,
        "kube-public",
        resource_version=before,
        resource_version_match="Exact",
        label_selector="number",
    )
    assert [one.metadata.name for one in then.items] == ["c00", "c01"]
    await fails(504, core.list_namespaced_config_map, "kube-public", resource_version="99999999")


async def test_collections_are_deleted_by_selector(core: CoreV1Api) -> None:
    await _fill(core, 6)
    await do(core.delete_collection_namespaced_config_map, "kube-public", label_selector="parity=odd")
    left = await do(core.list_namespaced_config_map, "kube-public", label_selector="parity")
    assert [one.metadata.name for one in left.items] == ["c00", "c02", "c04"]
