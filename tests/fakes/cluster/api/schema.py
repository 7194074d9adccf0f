"""Unknown and mistyped fields, by the types that the official client is generated from.

That makes a misspelt field of a pod an error here; a cluster would drop it with a warning.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from kubernetes import client

from tests.fakes.cluster.api.errors import bad_request
from tests.fakes.cluster.api.resources import Object, Resource

_PREFIXES = ("V1", "CoreV1", "RbacV1")
_PRIMITIVES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "datetime": (str,),
    "object": (object,),
}


def check(resource: Resource, obj: Object) -> None:
    """Raise ApiError 400 for a field that is unknown or of a wrong type."""
    model = next(name for prefix in _PREFIXES if _fields(name := f"{prefix}{resource.kind}"))
    _walk(model, obj, resource.kind)


@functools.cache
def _fields(model: str) -> dict[str, str]:
    """JSON name → type expression of a model's fields."""
    found = getattr(client, model, None)
    if found is None:
        return {}
    return {found.attribute_map[name]: kind for name, kind in found.openapi_types.items()}


@functools.cache
def _container(expression: str) -> tuple[str, str]:
    """``list[X]`` and ``dict(str, X)`` taken apart; an empty first part for anything else."""
    found = re.fullmatch(r"(list|dict)[\[(](?:str, )?(.*)[\])]", expression)
    return (found[1], found[2]) if found else ("", expression)


def _walk(expression: str, value: Any, path: str) -> None:
    if value is None:
        return
    outer, inner = _container(expression)
    if outer == "list":
        _expect(isinstance(value, list), path, "array", value)
        for index, item in enumerate(value):
            _walk(inner, item, f"{path}[{index}]")
    elif outer == "dict":
        _expect(isinstance(value, dict), path, "object", value)
        for key, item in value.items():
            _walk(inner, item, f"{path}.{key}")
    elif inner in _PRIMITIVES:
        _expect(isinstance(value, _PRIMITIVES[inner]), path, inner, value)
    elif fields := _fields(inner):
        _expect(isinstance(value, dict), path, "object", value)
        for key, item in value.items():
            if key not in fields:
                raise bad_request(f'strict decoding error: unknown field "{path}.{key}"')
            _walk(fields[key], item, f"{path}.{key}")


def _expect(fits: bool, path: str, wanted: str, value: Any) -> None:
    if not fits:
        raise bad_request(f"json: cannot unmarshal {type(value).__name__} into field {path} of type {wanted}")
