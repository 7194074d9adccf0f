"""What is checked and filled in before an object is stored: defaults, classes, pod security, quota."""

from __future__ import annotations

from tests.fakes.cluster import pods as pod_rules
from tests.fakes.cluster import quotas
from tests.fakes.cluster.errors import forbidden, not_found
from tests.fakes.cluster.objects import begin
from tests.fakes.cluster.pod_security import violations
from tests.fakes.cluster.resources import (
    NAMESPACES,
    PODS,
    PRIORITYCLASSES,
    RUNTIMECLASSES,
    SERVICEACCOUNTS,
    Object,
    Resource,
)
from tests.fakes.cluster.store import Record, Store


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
        """Give a new namespace the account that every one has."""
        if resource is NAMESPACES:
            name = record.obj["metadata"]["name"]
            account = begin(SERVICEACCOUNTS, {"metadata": {"name": "default"}}, name)
            self.store.put(SERVICEACCOUNTS, account)

    def update(self, resource: Resource, old: Object, new: Object) -> None:
        """Raise ApiError 422 for a change that the type does not allow."""
        if resource is PODS:
            pod_rules.check_update(old, new)

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
        pod_rules.default(obj)
        pod_rules.check(obj)
        quotas.check(self.store, obj)
