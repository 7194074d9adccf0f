"""Rules of pods: defaults, validation, and what may change later."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.fakes.cluster.errors import invalid
from tests.fakes.cluster.quantities import amount
from tests.fakes.cluster.resources import PODS, Object

Cause = tuple[str, str, str]

_POD_DEFAULTS: Object = {
    "serviceAccountName": "default",
    "terminationGracePeriodSeconds": 30,
}
_CHANGEABLE = ("activeDeadlineSeconds", "terminationGracePeriodSeconds", "tolerations")


def containers(spec: Object) -> Iterator[tuple[str, Object]]:
    """Every container with the path of its field."""
    for field in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(field) or []):
            yield f"spec.{field}[{index}]", container


def default(pod: Object) -> None:
    """Fill in what the API server fills in and others here read."""
    spec = pod["spec"]
    for key, value in _POD_DEFAULTS.items():
        spec.setdefault(key, value)
    for _, container in containers(spec):
        resources = container.setdefault("resources", {})
        container.setdefault("imagePullPolicy", "IfNotPresent")
        resources["requests"] = {**resources.get("limits", {}), **resources.get("requests", {})}
    pod["status"] = {"phase": "Pending"}


def check(pod: Object) -> None:
    """Raise ApiError 422 with every cause for a pod that no cluster would take."""
    spec = pod["spec"]
    causes: list[Cause] = []
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and not 1 <= deadline < 1 << 31:
        why = "must be between 1 and 2147483647, inclusive"
        causes.append(_invalid("spec.activeDeadlineSeconds", deadline, why))
    volumes = {volume["name"] for volume in spec.get("volumes") or []}
    for path, container in containers(spec):
        causes += [
            (f"{path}.volumeMounts.name", "FieldValueNotFound", f'Not found: "{mount["name"]}"')
            for mount in container.get("volumeMounts") or []
            if mount["name"] not in volumes
        ]
        causes += _check_resources(path, container["resources"])
    if causes:
        raise invalid(PODS, pod["metadata"]["name"], causes)


def _check_resources(path: str, resources: Object) -> Iterator[Cause]:
    limits, requests = resources.get("limits", {}), resources["requests"]
    for name in requests.keys() & limits.keys():
        if amount(name, requests[name]) > amount(name, limits[name]):
            why = f"must be less than or equal to {name} limit of {limits[name]}"
            yield _invalid(f"{path}.resources.requests", requests[name], why)


def check_update(old: Object, new: Object) -> None:
    """Raise ApiError 422 when anything but the few changeable fields of the spec differs."""
    if _fixed(old["spec"]) != _fixed(new.get("spec") or {}):
        fields = "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`"
        message = (
            f"Forbidden: pod updates may not change fields other than {fields},`spec.tolerations` "
            "(only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be "
            "set to 1 if it was previously negative)"
        )
        raise invalid(PODS, old["metadata"]["name"], [("spec", "FieldValueForbidden", message)])


def _fixed(spec: Object) -> Any:
    copied: Object = json.loads(json.dumps(spec))
    for key in _CHANGEABLE:
        copied.pop(key, None)
    for _, container in containers(copied):
        container.pop("image", None)
    return copied


def _invalid(field: str, value: object, why: str) -> Cause:
    shown = f'"{value}"' if isinstance(value, str) else value
    return field, "FieldValueInvalid", f"Invalid value: {shown}: {why}"
