"""The forms of PATCH, as the official client and kubectl send them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kubernetes import client
from kubernetes.client import CoreV1Api

from tests.builders.cluster_builders import configmap, do, fails
from tests.fakes.cluster import patches
from tests.fakes.cluster.errors import ApiError

_STRATEGIC = "application/strategic-merge-patch+json"
_MERGE = "application/merge-patch+json"
_JSON = "application/json-patch+json"


def _apply(kind: str, patch: Any, obj: dict[str, Any]) -> dict[str, Any]:
    return patches.apply(kind, json.dumps(patch).encode(), obj)


@pytest.mark.parametrize(
    ("patch", "expected"),
    [
        ({"spec": {"containers": [{"name": "a", "image": "3"}]}}, [("a", "3"), ("b", "2")]),
        ({"spec": {"containers": [{"name": "c", "image": "3"}]}}, [("a", "1"), ("b", "2"), ("c", "3")]),
        ({"spec": {"containers": [{"name": "a", "$patch": "delete"}]}}, [("b", "2")]),
        ({"spec": {"containers": [{"name": "z", "image": "9"}, {"$patch": "replace"}]}}, [("z", "9")]),
        ({"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}}, [("a", "1"), ("b", "2")]),
        ({"spec": {"$patch": "replace", "containers": [{"name": "z", "image": "9"}]}}, [("z", "9")]),
    ],
)
def test_a_strategic_patch_merges_lists_by_their_keys(
    patch: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    obj = {"spec": {"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "2"}]}}
    found = _apply(_STRATEGIC, patch, obj)
    assert [(one["name"], one["image"]) for one in found["spec"]["containers"]] == expected


def test_a_strategic_patch_keeps_what_is_a_set_and_replaces_what_is_none() -> None:
    obj = {
        "metadata": {"finalizers": ["a", "b"]},
        "spec": {"tolerations": [{"key": "x"}], "hostNetwork": True},
    }
    patch = {
        "metadata": {"finalizers": ["c"], "$deleteFromPrimitiveList/finalizers": ["a"]},
        "spec": {"tolerations": [{"key": "y"}], "hostNetwork": None},
    }
    found = _apply(_STRATEGIC, patch, obj)
    assert sorted(found["metadata"]["finalizers"]) == ["b", "c"]
    assert found["spec"] == {"tolerations": [{"key": "y"}]}


def test_a_merge_patch_replaces_lists_and_drops_nulls() -> None:
    obj = {"a": {"b": 1, "c": [1, 2]}, "d": 1}
    assert _apply(_MERGE, {"a": {"c": [3], "b": None}, "e": {"f": None}}, obj) == {
        "a": {"c": [3]},
        "d": 1,
        "e": {},
    }


def test_json_patches_test_and_fail_as_a_whole() -> None:
    obj = {"a": {"b": 1}}
    steps = [{"op": "test", "path": "/a/b", "value": 1}, {"op": "replace", "path": "/a/b", "value": 2}]
    assert _apply(_JSON, steps, obj) == {"a": {"b": 2}}
    for wrong in ([{"op": "test", "path": "/a/b", "value": 9}], [{"op": "remove", "path": "/x"}]):
        with pytest.raises(ApiError) as caught:
            _apply(_JSON, wrong, {"a": {"b": 1}})
        assert caught.value.code == 422
    with pytest.raises(ApiError) as caught:
        _apply("text/plain", {}, {})
    assert caught.value.code == 415


async def test_an_apply_patch_creates_and_changes(core: CoreV1Api, api: client.ApiClient) -> None:
    options = {"field_manager": "me", "_content_type": patches.APPLY}
    body = configmap("one", {"a": "1"})
    made = await do(core.patch_namespaced_config_map, "one", "default", body, **options)
    assert made.metadata.uid
    again = await do(core.patch_namespaced_config_map, "one", "default", body, **options)
    assert again.metadata.resource_version == made.metadata.resource_version
    changed = await do(
        core.patch_namespaced_config_map, "one", "default", configmap("one", {"b": "2"}), **options
    )
    assert changed.metadata.labels == {"a": "1", "b": "2"}


async def test_a_patch_can_insist_on_a_version(core: CoreV1Api) -> None:
    made = await do(core.create_namespaced_config_map, "default", configmap("one"))
    version = made.metadata.resource_version
    body = {"metadata": {"resourceVersion": version, "labels": {"a": "1"}}}
    await do(core.patch_namespaced_config_map, "one", "default", body)
    body["metadata"]["labels"] = {"a": "2"}
    await fails(409, core.patch_namespaced_config_map, "one", "default", body)
    error = await fails(
        409, core.patch_namespaced_config_map, "one", "default", {"metadata": {"uid": "other"}}
    )
    assert "Precondition failed: UID" in error.body
    await fails(404, core.patch_namespaced_config_map, "none", "default", {"data": {}})
