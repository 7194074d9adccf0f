"""How objects end: at once, or after a pod's grace."""

from __future__ import annotations

from tests.fakes.cluster.objects import now
from tests.fakes.cluster.resources import PODS, Object, Resource
from tests.fakes.cluster.store import Record, Store


def delete(store: Store, resource: Resource, record: Record, options: Object | None = None) -> Record:
    """Begin or finish an object's end; a pod on a node ends when its kubelet says so (grace above 0).

    Args:
        options: ``DeleteOptions``.

    Returns:
        The object as it is now.
    """
    meta = record.obj["metadata"]
    grace = _grace(resource, record, options or {})
    if not grace:
        return store.remove(resource, (meta.get("namespace", ""), meta["name"]))
    if meta.get("deletionTimestamp") and meta["deletionGracePeriodSeconds"] <= grace:
        return record
    obj = record.copy()
    obj["metadata"].setdefault("deletionTimestamp", now())
    obj["metadata"]["deletionGracePeriodSeconds"] = grace
    return store.put(resource, obj)


def _grace(resource: Resource, record: Record, options: Object) -> int:
    if resource is not PODS:
        return 0
    spec, status = record.obj["spec"], record.obj.get("status") or {}
    if not spec.get("nodeName") or status.get("phase") in ("Succeeded", "Failed"):
        return 0
    grace: int = options.get("gracePeriodSeconds", spec["terminationGracePeriodSeconds"])
    return max(0, grace)
