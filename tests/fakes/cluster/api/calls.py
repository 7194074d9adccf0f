"""A request, taken apart: which verb on which object, by whom."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from aiohttp import web

from tests.fakes.cluster.api.errors import bad_request
from tests.fakes.cluster.api.resources import Object, Resource, find

_VERBS = {"POST": "create", "PATCH": "patch", "DELETE": "delete", "GET": "get"}

Match = Callable[[Object], bool]


@dataclass(slots=True, kw_only=True)
class Call:
    """One request to a resource."""

    verb: str
    """As RBAC has it: get, list, watch, create, patch, delete, deletecollection."""
    resource: Resource
    namespace: str
    name: str
    subresource: str
    query: Mapping[str, str]
    user: str
    content_type: str
    body: bytes = b""

    @property
    def plural(self) -> str:
        """The resource as RBAC names it, with its subresource."""
        return f"{self.resource.plural}/{self.subresource}" if self.subresource else self.resource.plural

    def flag(self, name: str) -> bool:
        """A boolean query parameter."""
        return self.query.get(name, "") == "true"

    def number(self, name: str) -> int | None:
        """A whole-number query parameter. Raises ApiError 400."""
        text = self.query.get(name, "")
        if text and not text.isdigit():
            raise bad_request(f"invalid value '{text}' of query parameter {name}")
        return int(text) if text else None

    def selection(self) -> Match:
        """A predicate for the label selector: equalities only. Raises ApiError 400 for any other."""
        if "fieldSelector" in self.query:
            raise bad_request("field selectors are not served here")
        wanted: dict[str, str] = {}
        for term in filter(None, self.query.get("labelSelector", "").split(",")):
            key, equals, value = term.partition("=")
            if not equals or key.endswith("!"):
                raise bad_request(f"unable to parse requirement: invalid label selector '{term}'")
            wanted[key] = value
        return lambda obj: wanted.items() <= (obj["metadata"].get("labels") or {}).items()

    def target(self) -> str:
        """The name of the object: the path's, or for a new one the body's. Raises ApiError 400."""
        if self.name or self.verb != "create" or not self.body:
            return self.name
        meta: Object = self.object().get("metadata") or {}
        return str(meta.get("name") or "")

    def object(self) -> Object:
        """The body. Raises ApiError 400."""
        try:
            loaded: Object = json.loads(self.body or b"{}")
        except ValueError as error:
            raise bad_request(f"the body of the request is unreadable: {error}") from None
        return loaded


def parse(request: web.BaseRequest, user: str) -> Call | None:
    """The call behind an HTTP request, without its body; None for paths of no resource."""
    parts = [part for part in request.path.split("/") if part]
    if parts[:2] == ["api", "v1"]:
        group, version, rest = "", "v1", parts[2:]
    elif parts[:1] == ["apis"] and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    namespace = ""
    if len(rest) > 2 and rest[0] == "namespaces":
        namespace, rest = rest[1], rest[2:]
    if not rest or len(rest) > 3:
        return None
    resource = find(group, version, rest[0])
    if resource is None or (namespace and not resource.namespaced):
        return None
    name = rest[1] if len(rest) > 1 else ""
    subresource = rest[2] if len(rest) > 2 else ""
    if subresource not in ("", resource.subresource):
        return None
    call = Call(
        verb=_VERBS.get(request.method, ""),
        resource=resource,
        namespace=namespace,
        name=name,
        subresource=subresource,
        query=request.query,
        user=user,
        content_type=request.headers.get("Content-Type", ""),
    )
    call.verb = _refine(call)
    return call


def _refine(call: Call) -> str:
    if call.verb == "get" and call.flag("watch"):
        return "watch"
    if not call.name:
        return {"get": "list", "delete": "deletecollection"}.get(call.verb, call.verb)
    return call.verb
