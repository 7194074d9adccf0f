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
    "dnsPolicy": "ClusterFirst",
    "enableServiceLinks": True,
    "preemptionPolicy": "PreemptLowerPriority",
    "restartPolicy": "Always",
    "schedulerName": "default-scheduler",
    "securityContext": {},
    "serviceAccountName": "default",
    "terminationGracePeriodSeconds": 30,
}
_CONTAINER_DEFAULTS: Object = {
    "resources": {},
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
}
_TAINTED = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_CHANGEABLE = ("activeDeadlineSeconds", "terminationGracePeriodSeconds", "tolerations")


def containers(spec: Object) -> Iterator[tuple[str, Object]]:
    """Every container with the path of its field."""
    for field in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(field) or []):
            yield f"spec.{field}[{index}]", container


def default(pod: Object) -> None:
    """Fill in what the API server and its admission plugins fill in."""
    spec: Object = pod.setdefault("spec", {})
    for key, value in _POD_DEFAULTS.items():
        spec.setdefault(key, value)
    spec["serviceAccount"] = spec["serviceAccountName"]
    tolerations: list[Object] = list(spec.get("tolerations") or ())
    for key in _TAINTED:
        if not any(
            one.get("key") in (None, key) and one.get("effect") in (None, "NoExecute") for one in tolerations
        ):
            tolerations.append(
                {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
            )
    spec["tolerations"] = tolerations
    for _, container in containers(spec):
        for key, value in _CONTAINER_DEFAULTS.items():
            container.setdefault(key, value)
        _default_container(container)
    pod["status"] = {"phase": "Pending", "qosClass": _quality(spec)}


def _default_container(container: Object) -> None:
    if "imagePullPolicy" not in container:
        name = container.get("image", "").rpartition("/")[2]
        latest = "@" not in name and (":" not in name or name.endswith(":latest"))
        container["imagePullPolicy"] = "Always" if latest else "IfNotPresent"
    limits = container["resources"].get("limits")
    if limits:
        container["resources"]["requests"] = {**limits, **(container["resources"].get("requests") or {})}
    for port in container.get("ports") or []:
        port.setdefault("protocol", "TCP")


def _quality(spec: Object) -> str:
    resources = [container["resources"] for container in spec.get("containers") or []]
    if not any(one.get("requests") or one.get("limits") for one in resources):
        return "BestEffort"
    for one in resources:
        limits, requests = one.get("limits") or {}, one.get("requests") or {}
        if any(key not in limits or limits[key] != requests.get(key) for key in ("cpu", "memory")):
            return "Burstable"
    return "Guaranteed"


def check(pod: Object) -> None:
    """Raise ApiError 422 with every cause for a pod that no cluster would take."""
    spec, causes = pod["spec"], []
    if not spec.get("containers"):
        causes.append(("spec.containers", "FieldValueRequired", "Required value"))
    if spec["restartPolicy"] not in ("Always", "OnFailure", "Never"):
        causes.append(
            _unsupported("spec.restartPolicy", spec["restartPolicy"], ("Always", "OnFailure", "Never"))
        )
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and not 1 <= deadline < 1 << 31:
        why = "must be between 1 and 2147483647, inclusive"
        causes.append(_invalid("spec.activeDeadlineSeconds", deadline, why))
    volumes = {volume.get("name") for volume in spec.get("volumes") or []}
    seen: set[str] = set()
    for path, container in containers(spec):
        causes += _check_container(path, container, volumes, seen)
    if causes:
        raise invalid(PODS, pod["metadata"]["name"], causes)


def _check_container(path: str, container: Object, volumes: set[str], seen: set[str]) -> list[Cause]:
    causes: list[Cause] = []
    name = container.get("name") or ""
    if not name:
        causes.append((f"{path}.name", "FieldValueRequired", "Required value"))
    elif name in seen:
        causes.append((f"{path}.name", "FieldValueDuplicate", f'Duplicate value: "{name}"'))
    seen.add(name)
    if not container.get("image"):
        causes.append((f"{path}.image", "FieldValueRequired", "Required value"))
    if container["imagePullPolicy"] not in ("Always", "IfNotPresent", "Never"):
        options = ("Always", "IfNotPresent", "Never")
        causes.append(_unsupported(f"{path}.imagePullPolicy", container["imagePullPolicy"], options))
    for index, mount in enumerate(container.get("volumeMounts") or []):
        if mount.get("name") not in volumes:
            where = f"{path}.volumeMounts[{index}].name"
            causes.append((where, "FieldValueNotFound", f'Not found: "{mount.get("name")}"'))
    for variable in container.get("env") or []:
        if not variable.get("name"):
            causes.append((f"{path}.env.name", "FieldValueRequired", "Required value"))
    return causes + _check_resources(path, container["resources"])


def _check_resources(path: str, resources: Object) -> list[Cause]:
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    causes: list[Cause] = []
    for which, quantities in (("limits", limits), ("requests", requests)):
        for name, text in quantities.items():
            try:
                negative = amount(name, str(text)) < 0
            except ValueError:
                causes.append(
                    _invalid(
                        f"{path}.resources.{which}.{name}",
                        text,
                        "quantities must match the regular expression",
                    )
                )
                continue
            if negative:
                causes.append(
                    _invalid(f"{path}.resources.{which}.{name}", text, "must be greater than or equal to 0")
                )
    for name in requests.keys() & limits.keys() if not causes else ():
        if amount(name, str(requests[name])) > amount(name, str(limits[name])):
            why = f"must be less than or equal to {name} limit of {limits[name]}"
            causes.append(_invalid(f"{path}.resources.requests", requests[name], why))
    return causes


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


def _unsupported(field: str, value: object, options: tuple[str, ...]) -> Cause:
    listed = ", ".join(f'"{option}"' for option in options)
    return field, "FieldValueNotSupported", f'Unsupported value: "{value}": supported values: {listed}'
