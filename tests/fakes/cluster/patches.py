"""PATCH bodies: JSON patch (RFC 6902), merge patch (RFC 7386), strategic merge patch, and a plain form of
apply.

The strategic form follows the merge keys of the built-in types; an apply patch merges the same way, without
field ownership.
"""

from __future__ import annotations

import json
from typing import Any

import jsonpatch
import yaml

from tests.fakes.cluster.errors import ApiError, bad_request
from tests.fakes.cluster.resources import Object

APPLY = "application/apply-patch+yaml"
_MERGE_KEYS = {
    "conditions": "type",
    "containers": "name",
    "env": "name",
    "ephemeralContainers": "name",
    "hostAliases": "ip",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ownerReferences": "uid",
    "podIPs": "ip",
    "ports": "containerPort",
    "secrets": "name",
    "taints": "key",
    "topologySpreadConstraints": "topologyKey",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
_MERGED_SETS = frozenset(("finalizers",))


def apply(kind: str, body: bytes, obj: Object) -> Object:
    """``obj`` (which may be consumed) with the patch applied.

    Args:
        kind: the request's content type.

    Raises:
        ApiError: 400 or 422 for a patch that cannot be read or applied, 415 for a kind nobody knows.
    """
    kind = kind.partition(";")[0].strip()
    try:
        patch = yaml.safe_load(body) if kind == APPLY else json.loads(body)
    except (ValueError, yaml.YAMLError) as error:
        raise bad_request(f"error decoding patch: {error}") from None
    match kind:
        case "application/json-patch+json":
            return _json_patch(patch, obj)
        case "application/merge-patch+json":
            merged: Object = _merge(obj, patch)
            return merged
        case "application/strategic-merge-patch+json" | "application/apply-patch+yaml":
            return _strategic(obj, patch)
    raise ApiError(415, "UnsupportedMediaType", f"the body of the request was in an unknown format - {kind}")


def _json_patch(patch: Any, obj: Object) -> Object:
    try:
        patched: Object = jsonpatch.apply_patch(obj, patch)
    except jsonpatch.JsonPatchTestFailed as error:
        raise ApiError(
            422, "Invalid", f"the server rejected our request: testing path failed: {error}"
        ) from None
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException, TypeError) as error:
        raise ApiError(
            422, "Invalid", f"the server rejected our request due to an error in our request: {error}"
        ) from None
    return patched


def _merge(old: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    merged = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merge(merged.get(key), value)
    return merged


def _strategic(old: Object, patch: Object) -> Object:
    patch = dict(patch)
    directive = patch.pop("$patch", None)
    if directive == "replace":
        return patch
    merged = dict(old)
    retained = patch.pop("$retainKeys", None)
    if retained is not None:
        merged = {key: value for key, value in merged.items() if key in retained}
    for key, value in patch.items():
        if key.startswith("$setElementOrder/"):
            continue
        if key.startswith("$deleteFromPrimitiveList/"):
            name = key.partition("/")[2]
            merged[name] = [item for item in merged.get(name) or [] if item not in value]
        elif value is None:
            merged.pop(key, None)
        else:
            merged[key] = _strategic_value(key, merged.get(key), value)
    return merged


def _strategic_value(key: str, old: Any, value: Any) -> Any:
    if isinstance(value, dict):
        return _strategic(old if isinstance(old, dict) else {}, value)
    if not isinstance(value, list) or not isinstance(old, list):
        return value
    if key in _MERGED_SETS:
        return [*old, *(item for item in value if item not in old)]
    if key in _MERGE_KEYS and all(isinstance(item, dict) for item in value):
        return _strategic_list(_MERGE_KEYS[key], old, value)
    return value


def _strategic_list(by: str, old: list[Object], patches: list[Object]) -> list[Object]:
    if any(set(item) == {"$patch"} and item["$patch"] == "replace" for item in patches):
        return [item for item in patches if "$patch" not in item]
    merged = {item.get(by): item for item in old}
    for item in patches:
        name = item.get(by)
        if item.get("$patch") == "delete":
            merged.pop(name, None)
        else:
            merged[name] = _strategic(merged.get(name, {}), item)
    return list(merged.values())
