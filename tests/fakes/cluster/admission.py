"""What the API server checks and fills in before an object is stored: defaults, classes, limits, quota."""

from __future__ import annotations

from tests.fakes.cluster import pods as pod_rules
from tests.fakes.cluster import quotas
from tests.fakes.cluster.calls import Call
from tests.fakes.cluster.errors import forbidden, invalid, not_found
from tests.fakes.cluster.objects import begin
from tests.fakes.cluster.pod_security import violations
from tests.fakes.cluster.resources import (
    CONFIGMAPS,
    NAMESPACES,
    PODS,
    PRIORITYCLASSES,
    RUNTIMECLASSES,
    SERVICEACCOUNTS,
    Object,
    Resource,
)
from tests.fakes.cluster.schema import check as check_schema
from tests.fakes.cluster.store import Record, Store


class Admission:
    """Checks of writes that came through the API."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def schema(self, call: Call, obj: Object) -> tuple[str, ...]:
        """Warnings about fields that the type does not have; they are dropped.

        For a pod also what the namespace's security level warns about.

        Raises:
            ApiError: 400, a field of a wrong type, or an unknown one under ``fieldValidation=Strict``.
        """
        warnings = check_schema(call.resource, obj, strict=call.query.get("fieldValidation") == "Strict")
        namespace = self.store.get(NAMESPACES, "", call.namespace)
        if call.resource is PODS and call.verb == "create" and namespace is not None:
            against = violations(namespace.obj, "warn", obj.get("spec") or {})
            warnings += (against.replace("violates", "would violate", 1),) if against else ()
        return warnings

    def create(self, resource: Resource, obj: Object) -> None:
        """Complete a new object or raise ApiError 403, 404, 422."""
        if resource.namespaced:
            self._check_namespace(resource, obj)
        match resource:
            case _ if resource is NAMESPACES:
                obj["spec"] = {"finalizers": ["kubernetes"]}
                obj["status"] = {"phase": "Active"}
                obj["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = obj["metadata"][
                    "name"
                ]
            case _ if resource is PODS:
                self._pod(obj)
        quotas.check(self.store, resource, obj)

    def created(self, resource: Resource, record: Record) -> None:
        """What follows from a new object at once."""
        if resource is NAMESPACES:
            self.fill_namespace(record.obj["metadata"]["name"])

    def update(self, resource: Resource, old: Object, new: Object, subresource: str) -> None:
        """Raise ApiError 422 for a change that the type does not allow."""
        if resource is PODS and not subresource:
            pod_rules.check_update(old, new)
        if old.get("immutable") and any(
            old.get(key) != new.get(key) for key in ("data", "binaryData", "immutable")
        ):
            raise invalid(
                resource,
                old["metadata"]["name"],
                [("data", "FieldValueForbidden", "Forbidden: field is immutable when `immutable` is set")],
            )

    def fill_namespace(self, name: str) -> None:
        """Give a namespace what every one has."""
        for resource, object_name in ((SERVICEACCOUNTS, "default"), (CONFIGMAPS, "kube-root-ca.crt")):
            if self.store.get(resource, name, object_name) is None:
                self.store.put(resource, begin(resource, {"metadata": {"name": object_name}}, name))

    def _check_namespace(self, resource: Resource, obj: Object) -> None:
        name = obj["metadata"]["namespace"]
        namespace = self.store.get(NAMESPACES, "", name)
        if namespace is None:
            raise not_found(NAMESPACES, name)
        if namespace.obj["metadata"].get("deletionTimestamp"):
            why = f"unable to create new content in namespace {name} because it is being terminated"
            error = forbidden(resource, obj["metadata"]["name"], why)
            error.details["causes"] = [
                {
                    "reason": "NamespaceTerminating",
                    "message": f"namespace {name} is being terminated",
                    "field": "metadata.namespace",
                }
            ]
            raise error

    def _pod(self, obj: Object) -> None:
        spec, name, namespace = obj.get("spec") or {}, obj["metadata"]["name"], obj["metadata"]["namespace"]
        account = spec.get("serviceAccountName") or "default"
        if self.store.get(SERVICEACCOUNTS, namespace, account) is None:
            missing = f'serviceaccount "{account}" not found'
            why = f"error looking up service account {namespace}/{account}: {missing}"
            raise forbidden(PODS, name, why)
        if (runtime := spec.get("runtimeClassName")) and self.store.get(RUNTIMECLASSES, "", runtime) is None:
            raise forbidden(PODS, name, f'pod rejected: RuntimeClass "{runtime}" not found')
        self._priority(spec, name)
        place = self.store.get(NAMESPACES, "", namespace)
        assert place is not None
        if against := violations(place.obj, "enforce", spec):
            raise forbidden(PODS, name, against)
        quotas.apply_limit_ranges(self.store, obj)
        pod_rules.default(obj)
        pod_rules.check(obj)

    def _priority(self, spec: Object, name: str) -> None:
        if wanted := spec.get("priorityClassName"):
            found = self.store.get(PRIORITYCLASSES, "", wanted)
            if found is None:
                raise forbidden(PODS, name, f"no PriorityClass with name {wanted} was found")
            spec["priority"] = found.obj["value"]
            spec["preemptionPolicy"] = found.obj.get("preemptionPolicy", "PreemptLowerPriority")
            return
        for record in self.store.all(PRIORITYCLASSES):
            if record.obj.get("globalDefault"):
                spec["priorityClassName"] = record.obj["metadata"]["name"]
                spec["priority"] = record.obj["value"]
        spec.setdefault("priority", 0)
