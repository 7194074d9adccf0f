"""Checks and defaults before an object is stored: classes, pod security, rules of pods, quota."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.fakes.cluster.api import quotas
from tests.fakes.cluster.api.errors import forbidden, invalid, not_found
from tests.fakes.cluster.api.objects import begin
from tests.fakes.cluster.api.pod_security import containers, violations
from tests.fakes.cluster.api.resources import (
    NAMESPACES,
    PODS,
    PRIORITYCLASSES,
    RUNTIMECLASSES,
    SERVICEACCOUNTS,
    Object,
    Resource,
)
from tests.fakes.cluster.api.store import Record, Store

Cause = tuple[str, str, str]

_CHANGEABLE = ("activeDeadlineSeconds", "terminationGracePeriodSeconds", "tolerations")


class Admission:
    """Checks of writes that came through the API."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def create(self, resource: Resource, obj: Object) -> None:
        """Complete a new object or raise ApiError 403, 404, 422."""
        if resource.namespaced:
            namespace = self.store.get(NAMESPACES, "", obj["metadata"]["namespace"])
            if namespace is None:
                raise not_found(NAMESPACES, obj["metadata"]["namespace"])
            if resource is PODS:
                self._pod(obj, namespace)

    def created(self, resource: Resource, record: Record) -> None:
        """Give a new namespace its default account."""
        if resource is NAMESPACES:
            name = record.obj["metadata"]["name"]
            account = begin(SERVICEACCOUNTS, {"metadata": {"name": "default"}}, name)
            self.store.put(SERVICEACCOUNTS, account)

    def update(self, resource: Resource, old: Object, new: Object) -> None:
        """Raise ApiError 422 for a change that the type does not allow."""
        if resource is PODS and _fixed(old["spec"]) != _fixed(new["spec"]):
            fields = "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`"
            message = (
                f"Forbidden: pod updates may not change fields other than {fields},`spec.tolerations` "
                "(only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to "
                "be set to 1 if it was previously negative)"
            )
            raise invalid(PODS, old["metadata"]["name"], [("spec", "FieldValueForbidden", message)])

    def _pod(self, obj: Object, namespace: Record) -> None:
        spec, name = obj["spec"], obj["metadata"]["name"]
        account = spec.get("serviceAccountName", "default")
        if self.store.get(SERVICEACCOUNTS, obj["metadata"]["namespace"], account) is None:
            why = f"error looking up service account {obj['metadata']['namespace']}/{account}: not found"
            raise forbidden(PODS, name, why)
        if (runtime := spec.get("runtimeClassName")) and self.store.get(RUNTIMECLASSES, "", runtime) is None:
            raise forbidden(PODS, name, f'pod rejected: RuntimeClass "{runtime}" not found')
        if (wanted := spec.get("priorityClassName")) and self.store.get(PRIORITYCLASSES, "", wanted) is None:
            raise forbidden(PODS, name, f"no PriorityClass with name {wanted} was found")
        if against := violations(namespace.obj, spec):
            raise forbidden(PODS, name, against)
        _default(obj)
        _check(obj)
        quotas.check(self.store, obj)


def _default(pod: Object) -> None:
    """Fill in the defaults that other parts of this cluster read."""
    spec = pod["spec"]
    spec.setdefault("serviceAccountName", "default")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    for _, container in containers(spec):
        resources = container.setdefault("resources", {})
        container.setdefault("imagePullPolicy", "IfNotPresent")
        resources["requests"] = {**resources.get("limits", {}), **resources.get("requests", {})}
    pod["status"] = {"phase": "Pending"}


def _check(pod: Object) -> None:
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
        if quotas.amount(name, requests[name]) > quotas.amount(name, limits[name]):
            why = f"must be less than or equal to {name} limit of {limits[name]}"
            yield _invalid(f"{path}.resources.requests", requests[name], why)


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
