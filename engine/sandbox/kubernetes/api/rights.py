"""Known rights of the account, from its earlier requests and from preflight.

An API server that has just started refuses everything for a moment, because its RBAC rules are not loaded
yet. A right that was granted before identifies such a refusal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

_COLLECTION_VERBS = {"GET": "list", "POST": "create", "DELETE": "deletecollection"}
_OBJECT_VERBS = {"GET": "get", "POST": "create", "PATCH": "patch", "DELETE": "delete"}


class Right(NamedTuple):
    """A right as named by RBAC; the namespace is always the configured one."""

    verb: str
    group: str
    resource: str
    """Resource with its subresource, e.g. ``pods/exec``."""


class Rights:
    """Rights that the cluster has granted to the account before."""

    def __init__(self) -> None:
        self._seen: set[Right] = set()

    def note(self, right: Right) -> None:
        """Record that the cluster granted a right."""
        self._seen.add(right)

    def __contains__(self, right: object) -> bool:
        return right in self._seen


def right_for(method: str, path: str, query: Mapping[str, str]) -> Right:
    """Return the right that a request needs."""
    _, root, *parts = path.split("/")
    group = parts.pop(0) if root == "apis" else ""
    parts = parts[1:]  # without the version
    if parts[:1] == ["namespaces"] and len(parts) > 2:
        parts = parts[2:]
    resource, name, subresource = (*parts, "", "", "")[:3]
    verb = "watch" if "watch" in query else (_OBJECT_VERBS if name else _COLLECTION_VERBS)[method]
    return Right(verb, group, f"{resource}/{subresource}" if subresource else resource)
