"""Unknown and mistyped fields, by the types that the official client is generated from.

That makes a misspelt field of a pod an error here exactly where it would be one on a cluster.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from kubernetes import client

from tests.fakes.cluster.errors import bad_request
from tests.fakes.cluster.resources import Object, Resource

_PREFIXES = ("V1", "CoreV1", "RbacV1")
_PRIMITIVES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "datetime": (str,),
    "object": (object,),
}
_QUANTITIES = frozenset(
    (
        "limits",
        "requests",
        "hard",
        "used",
        "default",
        "defaultRequest",
        "max",
        "min",
        "capacity",
        "allocatable",
    )
)
"""Fields whose values may be numbers as well as text."""


def check(resource: Resource, obj: Object, *, strict: bool) -> tuple[str, ...]:
    """Drop unknown fields of ``obj`` in place and return a warning for each.

    Raises:
        ApiError: 400, a field has the wrong type, or is unknown and ``strict`` is set.
    """
    model = next(
        (f"{prefix}{resource.kind}" for prefix in _PREFIXES if _fields(f"{prefix}{resource.kind}")), None
    )
    if model is None:
        return ()
    unknown: list[str] = []
    _walk(model, obj, "", unknown)
    if unknown and strict:
        what = f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}'
        listed = ", ".join(f'unknown field "{path}"' for path in unknown)
        raise bad_request(f"{what}: strict decoding error: {listed}")
    return tuple(f'unknown field "{path}"' for path in unknown)


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


def _walk(expression: str, value: Any, path: str, unknown: list[str]) -> None:
    if value is None:
        return
    outer, inner = _container(expression)
    if outer == "list":
        _expect(isinstance(value, list), path, "array", value)
        for index, item in enumerate(value):
            _walk(inner, item, f"{path}[{index}]", unknown)
    elif outer == "dict":
        _expect(isinstance(value, dict), path, "object", value)
        kind = "object" if path.rpartition(".")[2] in _QUANTITIES else inner
        for key, item in value.items():
            _walk(kind, item, f"{path}.{key}", unknown)
    elif inner in _PRIMITIVES:
        _check_primitive(inner, value, path)
    elif fields := _fields(inner):
        _expect(isinstance(value, dict), path, "object", value)
        for key in list(value):
            where = f"{path}.{key}" if path else key
            if key not in fields:
                unknown.append(where)
                del value[key]
            else:
                _walk(fields[key], value[key], where, unknown)


def _check_primitive(kind: str, value: Any, path: str) -> None:
    fits = isinstance(value, _PRIMITIVES[kind])
    if kind in ("int", "float") and isinstance(value, bool):
        fits = False
    _expect(fits, path, kind, value)


def _expect(fits: bool, path: str, wanted: str, value: Any) -> None:
    if not fits:
        raise bad_request(f"json: cannot unmarshal {type(value).__name__} into field {path} of type {wanted}")
