"""What the server serves: version, API groups, resource lists, and as much OpenAPI as kubectl asks for."""

from __future__ import annotations

import functools

from tests.fakes.cluster.resources import RESOURCES, Object, Resource

VERSION: Object = {
    "major": "1",
    "minor": "33",
    "gitVersion": "v1.33.0+fake",
    "gitCommit": "0000000000000000000000000000000000000000",
    "gitTreeState": "clean",
    "buildDate": "2025-04-23T00:00:00Z",
    "goVersion": "go1.24.2",
    "compiler": "gc",
    "platform": "linux/amd64",
}
_HEALTH = frozenset(("/healthz", "/livez", "/readyz"))
_GROUPS = tuple(dict.fromkeys((one.group, one.version) for one in RESOURCES if one.group))


@functools.cache
def document(path: str) -> Object | str | None:
    """The document at a path; None where there is none."""
    path = path.rstrip("/")
    if path in _HEALTH:
        return "ok"
    parts = path.strip("/").split("/")
    match parts:
        case ["version"]:
            return VERSION
        case ["api"]:
            return {
                "kind": "APIVersions",
                "apiVersion": "v1",
                "versions": ["v1"],
                "serverAddressByClientCIDRs": [],
            }
        case ["apis"]:
            groups = [_group(group, version) for group, version in _GROUPS]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
        case ["api", "v1"]:
            return _resources("", "v1")
        case ["apis", group]:
            found = [_group(one, version) for one, version in _GROUPS if one == group]
            return {"kind": "APIGroup", "apiVersion": "v1", **found[0]} if found else None
        case ["apis", group, version] if (group, version) in _GROUPS:
            return _resources(group, version)
        case ["openapi", "v3"]:
            return {
                "paths": {
                    _prefix(*one): {"serverRelativeURL": f"/openapi/v3/{_prefix(*one)}"} for one in _all()
                }
            }
        case ["openapi", "v3", "api", "v1"]:
            return _openapi("", "v1")
        case ["openapi", "v3", "apis", group, version] if (group, version) in _GROUPS:
            return _openapi(group, version)
    return None


def _all() -> list[tuple[str, str]]:
    return [("", "v1"), *_GROUPS]


def _prefix(group: str, version: str) -> str:
    return f"apis/{group}/{version}" if group else f"api/{version}"


def _group(group: str, version: str) -> Object:
    preferred = {"groupVersion": f"{group}/{version}", "version": version}
    return {"name": group, "versions": [preferred], "preferredVersion": preferred}


def _resources(group: str, version: str) -> Object:
    listed: list[Object] = []
    for one in RESOURCES:
        if (one.group, one.version) != (group, version):
            continue
        listed.append(
            {
                "name": one.plural,
                "singularName": one.kind.lower(),
                "namespaced": one.namespaced,
                "kind": one.kind,
                "verbs": list(one.verbs),
                "shortNames": list(one.short),
            }
        )
        for sub in one.subresources:
            verbs = ["get", "patch", "update"] if sub == "status" else ["create", "get"]
            listed.append(
                {
                    "name": f"{one.plural}/{sub}",
                    "singularName": "",
                    "namespaced": one.namespaced,
                    "kind": one.kind,
                    "verbs": verbs,
                }
            )
    api_version = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api_version, "resources": listed}


def _openapi(group: str, version: str) -> Object:
    """Just enough to tell kubectl that the server validates fields itself."""
    paths: Object = {}
    for one in RESOURCES:
        if (one.group, one.version) == (group, version) and not one.virtual:
            paths[_path(one)] = {
                "patch": {
                    "parameters": [{"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}],
                    "x-kubernetes-action": "patch",
                    "x-kubernetes-group-version-kind": {"group": group, "version": version, "kind": one.kind},
                    "responses": {},
                }
            }
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": VERSION["gitVersion"]},
        "paths": paths,
        "components": {"schemas": {}},
    }


def _path(one: Resource) -> str:
    where = "/namespaces/{namespace}" if one.namespaced else ""
    return f"/{_prefix(one.group, one.version)}{where}/{one.plural}/{{name}}"
