"""Answers as tables, for kubectl to print: pods and nodes in own columns, the rest by name and age."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable

from tests.fakes.cluster.resources import NODES, PODS, Object, Resource

_ACCEPT = "as=Table"
_ROLE = "node-role.kubernetes.io/"
Cell = str | int
Column = tuple[str, Callable[[Object], Cell], int]
"""Heading, what to show, and 1 for columns of the wide form only."""


def wanted(accept: str) -> bool:
    """Whether the client prefers a table."""
    return _ACCEPT in accept.partition(",")[0]


def table(resource: Resource, data: bytes) -> bytes:
    """The table of an object or a list of them."""
    document: Object = json.loads(data)
    items = document.get("items")
    objects: list[Object] = [document] if items is None else items
    columns = _COLUMNS.get(resource, _PLAIN)
    rows = [
        {
            "cells": [show(obj) for _, show, _ in columns],
            "object": {
                "kind": "PartialObjectMetadata",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": obj["metadata"],
            },
        }
        for obj in objects
    ]
    common = {"type": "string", "description": ""}
    definitions = [
        {"name": name, "format": "name" if name == "Name" else "", "priority": wide, **common}
        for name, _, wide in columns
    ]
    own = document["metadata"]
    meta = own if items is not None else {"resourceVersion": own["resourceVersion"]}
    return json.dumps(
        {
            "kind": "Table",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": meta,
            "columnDefinitions": definitions,
            "rows": rows,
        }
    ).encode()


def _name(obj: Object) -> str:
    name: str = obj["metadata"]["name"]
    return name


def _age(obj: Object) -> str:
    began = datetime.datetime.fromisoformat(obj["metadata"]["creationTimestamp"])
    seconds = int((datetime.datetime.now(datetime.UTC) - began).total_seconds())
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def _containers(pod: Object) -> list[Object]:
    found: list[Object] = pod["status"].get("containerStatuses") or []
    return found


def _ready(pod: Object) -> str:
    return f"{sum(one['ready'] for one in _containers(pod))}/{len(pod['spec']['containers'])}"


def _status(pod: Object) -> str:
    if pod["metadata"].get("deletionTimestamp"):
        return "Terminating"
    status = pod["status"]
    reason = status.get("reason") or status.get("phase", "")
    for one in _containers(pod):
        for state in ("waiting", "terminated"):
            reason = (one["state"].get(state) or {}).get("reason") or reason
    return str(reason)


def _restarts(pod: Object) -> int:
    return sum(one["restartCount"] for one in _containers(pod))


def _address(pod: Object) -> str:
    return pod["status"].get("podIP") or "<none>"


def _node_of(pod: Object) -> str:
    return pod["spec"].get("nodeName") or "<none>"


def _node_status(node: Object) -> str:
    ready: Object = next(
        (one for one in node["status"].get("conditions") or [] if one["type"] == "Ready"), {}
    )
    shown = "Ready" if ready.get("status") == "True" else "NotReady"
    return f"{shown},SchedulingDisabled" if node.get("spec", {}).get("unschedulable") else shown


def _roles(node: Object) -> str:
    labels = node["metadata"].get("labels") or {}
    return ",".join(key.removeprefix(_ROLE) for key in labels if key.startswith(_ROLE)) or "<none>"


def _version(node: Object) -> str:
    return str(node["status"].get("nodeInfo", {}).get("kubeletVersion", ""))


_PLAIN: tuple[Column, ...] = (("Name", _name, 0), ("Age", _age, 0))
_COLUMNS: dict[Resource, tuple[Column, ...]] = {
    PODS: (
        ("Name", _name, 0),
        ("Ready", _ready, 0),
        ("Status", _status, 0),
        ("Restarts", _restarts, 0),
        ("Age", _age, 0),
        ("IP", _address, 1),
        ("Node", _node_of, 1),
    ),
    NODES: (
        ("Name", _name, 0),
        ("Status", _node_status, 0),
        ("Roles", _roles, 0),
        ("Age", _age, 0),
        ("Version", _version, 0),
    ),
}
