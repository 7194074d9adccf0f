"""What all objects have in common: names, times, uids, the fields the server fills in."""

from __future__ import annotations

import datetime
import random
import re
import string
import uuid

from tests.fakes.cluster.errors import bad_request, invalid
from tests.fakes.cluster.resources import Object, Resource

_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
_QUALIFIED = re.compile(r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_RBAC_GROUP = "rbac.authorization.k8s.io"
_random = random.Random()


def now() -> str:
    """This second, as objects carry times."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def suffix() -> str:
    """Five characters that make a generated name."""
    return "".join(_random.choices(_SUFFIX, k=5))


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
    if resource.namespaced:
        if meta.setdefault("namespace", namespace) != namespace:
            raise bad_request(
                "the namespace of the provided object does not match the namespace sent on the request"
            )
    else:
        meta.pop("namespace", None)
    if not meta.get("name") and meta.get("generateName"):
        meta["name"] = meta["generateName"] + suffix()
    check_metadata(resource, obj)
    for key in ("deletionTimestamp", "deletionGracePeriodSeconds", "resourceVersion", "selfLink"):
        meta.pop(key, None)
    meta["uid"] = str(uuid.uuid4())
    meta["creationTimestamp"] = now()
    if "spec" in obj:
        meta["generation"] = 1
    return obj


def check_metadata(resource: Resource, obj: Object) -> None:
    """Raise ApiError 422 for a missing or malformed name, label or annotation."""
    meta = obj["metadata"]
    name = meta.get("name") or ""
    causes: list[tuple[str, str, str]] = []
    if not name:
        causes.append(
            ("metadata.name", "FieldValueRequired", "Required value: name or generateName is required")
        )
    elif resource.group != _RBAC_GROUP and (len(name) > 253 or not _SUBDOMAIN.fullmatch(name)):
        causes.append(
            _bad(
                "metadata.name",
                name,
                "a lowercase RFC 1123 subdomain must consist of lower case "
                "alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character",
            )
        )
    for key, value in (meta.get("labels") or {}).items():
        if not _QUALIFIED.fullmatch(key):
            causes.append(_bad("metadata.labels", key, "name part must consist of alphanumeric characters"))
        if not isinstance(value, str) or len(value) > 63 or not _LABEL_VALUE.fullmatch(value):
            causes.append(
                _bad(
                    "metadata.labels",
                    str(value),
                    "a valid label must be an empty string or consist of "
                    "alphanumeric characters, '-', '_' or '.', no more than 63 characters",
                )
            )
    for key in meta.get("annotations") or {}:
        if not _QUALIFIED.fullmatch(key.lower()):
            causes.append(
                _bad("metadata.annotations", key, "name part must consist of alphanumeric characters")
            )
    for owner in meta.get("ownerReferences") or []:
        missing = [part for part in ("apiVersion", "kind", "name", "uid") if not owner.get(part)]
        causes += [
            (f"metadata.ownerReferences.{part}", "FieldValueRequired", "Required value: must not be empty")
            for part in missing
        ]
    if causes:
        raise invalid(resource, name, causes)


def _bad(field: str, value: str, why: str) -> tuple[str, str, str]:
    return field, "FieldValueInvalid", f'Invalid value: "{value}": {why}'


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


def random_name(length: int = 8) -> str:
    """Letters and digits."""
    return "".join(_random.choices(string.ascii_lowercase + string.digits, k=length))
