"""What all objects have in common: names, times, uids, the fields the server fills in."""

from __future__ import annotations

import datetime
import re
import uuid

from tests.fakes.cluster.api.errors import bad_request, invalid
from tests.fakes.cluster.api.resources import Object, Resource

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
_QUALIFIED = re.compile(r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def now() -> str:
    """This second, as objects carry times."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def begin(resource: Resource, obj: Object, namespace: str) -> Object:
    """Check and complete a new object's type and metadata; the argument is changed and returned.

    Raises:
        ApiError: 400 for another kind or namespace than the path has, 422 for a bad name or label.
    """
    obj.setdefault("apiVersion", resource.api_version)
    obj.setdefault("kind", resource.kind)
    if (obj["apiVersion"], obj["kind"]) != (resource.api_version, resource.kind):
        raise bad_request(
            f"the API version in the data ({obj['apiVersion']}, Kind={obj['kind']}) does not match the "
            f"expected API version ({resource.api_version}, Kind={resource.kind})"
        )
    meta: Object = obj.setdefault("metadata", {})
    if resource.namespaced and meta.setdefault("namespace", namespace) != namespace:
        raise bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    check_metadata(resource, obj)
    meta["uid"] = str(uuid.uuid4())
    meta["creationTimestamp"] = now()
    return obj


def check_metadata(resource: Resource, obj: Object) -> None:
    """Raise ApiError 422 for a malformed name, label or annotation."""
    meta = obj["metadata"]
    name, labels = meta.get("name") or "", meta.get("labels") or {}
    causes: list[tuple[str, str, str]] = []
    if len(name) > 253 or not _SUBDOMAIN.fullmatch(name):
        causes.append(_bad("metadata.name", name, "a lowercase RFC 1123 subdomain"))
    for key in (*labels, *(meta.get("annotations") or {})):
        if not _QUALIFIED.fullmatch(key):
            causes.append(_bad("metadata", key, "a qualified name"))
    for value in labels.values():
        if not isinstance(value, str) or len(value) > 63 or not _LABEL_VALUE.fullmatch(value):
            causes.append(_bad("metadata.labels", str(value), "a label of no more than 63 characters"))
    if causes:
        raise invalid(resource, name, causes)


def _bad(field: str, value: str, wanted: str) -> tuple[str, str, str]:
    return field, "FieldValueInvalid", f'Invalid value: "{value}": must be {wanted}'


def condition(obj: Object, kind: str, *, true: bool, reason: str = "", message: str = "") -> None:
    """Set a condition of an object's status; its transition time moves only when the status does."""
    status: Object = obj.setdefault("status", {})
    conditions: list[Object] = status.setdefault("conditions", [])
    value = "True" if true else "False"
    old = next((one for one in conditions if one["type"] == kind), None)
    new: Object = {"type": kind, "status": value, "lastProbeTime": None, "lastTransitionTime": now()}
    if old is not None and old["status"] == value:
        new["lastTransitionTime"] = old["lastTransitionTime"]
    if reason:
        new["reason"] = reason
    if message:
        new["message"] = message
    if old is None:
        conditions.append(new)
    else:
        conditions[conditions.index(old)] = new
