"""Label and field selectors, as query parameters carry them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from tests.fakes.cluster.errors import bad_request
from tests.fakes.cluster.resources import EVENTS, NAMESPACES, NODES, PODS, SECRETS, Object, Resource

Match = Callable[[Object], bool]

_SET = re.compile(r"^(?P<key>\S+)\s+(?P<op>in|notin)\s*\((?P<values>[^)]*)\)$")
_SPLIT = re.compile(r",(?![^(]*\))")
_FIELDS: Mapping[Resource, frozenset[str]] = {
    PODS: frozenset(
        (
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        )
    ),
    EVENTS: frozenset(
        (
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        )
    ),
    NAMESPACES: frozenset(("status.phase",)),
    NODES: frozenset(("spec.unschedulable",)),
    SECRETS: frozenset(("type",)),
}


def parse(resource: Resource, labels: str, fields: str) -> Match | None:
    """One predicate for both selectors; None when neither selects.

    Raises:
        ApiError: 400, a selector cannot be read or names a field that this resource cannot select by.
    """
    matches = [_label(term.strip()) for term in _SPLIT.split(labels) if term.strip()]
    matches += [_field(resource, term.strip()) for term in fields.split(",") if term.strip()]
    if not matches:
        return None
    return lambda obj: all(match(obj) for match in matches)


def _by_label(key: str, test: Callable[[str | None], bool]) -> Match:
    return lambda obj: test((obj["metadata"].get("labels") or {}).get(key))


def _expression(key: str, operator: str, values: frozenset[str]) -> Match:
    match operator:
        case "in":
            return _by_label(key, lambda have: have in values)
        case "notin":
            return _by_label(key, lambda have: have not in values)
        case "exists":
            return _by_label(key, lambda have: have is not None)
        case "doesnotexist":
            return _by_label(key, lambda have: have is None)
    raise bad_request(f'"{operator}" is not a valid label selector operator')


def _label(term: str) -> Match:
    found = _SET.match(term)
    if found:
        values = frozenset(value.strip() for value in found["values"].split(","))
        return _expression(found["key"], found["op"], values)
    for operator in ("!=", "==", "="):
        key, equals, value = term.partition(operator)
        if equals:
            return _expression(
                key.strip(), "notin" if operator == "!=" else "in", frozenset((value.strip(),))
            )
    if re.fullmatch(r"!?[\w./-]+", term):
        return _expression(
            term.lstrip("!"), "doesnotexist" if term.startswith("!") else "exists", frozenset()
        )
    raise bad_request(f"unable to parse requirement: invalid label selector '{term}'")


def _field(resource: Resource, term: str) -> Match:
    for operator in ("!=", "==", "="):
        path, equals, value = term.partition(operator)
        if equals:
            break
    else:
        raise bad_request(f"invalid field selector '{term}': can't understand it")
    supported = path in ("metadata.name", "metadata.namespace") or path in _FIELDS.get(resource, ())
    if not supported:
        raise bad_request(f"field label not supported: {path}")
    negated, steps = operator == "!=", path.split(".")
    return lambda obj: (_value(obj, steps) == value) is not negated


def _value(obj: Object, steps: list[str]) -> str:
    value: object = obj
    for step in steps:
        value = value.get(step) if isinstance(value, dict) else None
    if isinstance(value, dict):
        value = value.get("component")
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)
