"""How objects end: grace and finalizers."""

from __future__ import annotations

from tests.fakes.cluster.objects import now
from tests.fakes.cluster.resources import NAMESPACES, PODS, Object, Resource
from tests.fakes.cluster.store import Record, Store


def delete(
    store: Store, resource: Resource, record: Record, options: Object | None = None
) -> tuple[Record, bool]:
    """Begin or finish an object's end.

    A pod on a node ends when its kubelet says so (grace above 0); one with finalizers when the last is taken
    away; a namespace when it is empty.

    Args:
        options: ``DeleteOptions``.

    Returns:
        The object as it is now, and whether it is gone.
    """
    options = options or {}
    meta = record.obj["metadata"]
    grace = _grace(resource, record, options)
    finalizers = meta.get("finalizers")
    if not grace and not finalizers and resource is not NAMESPACES:
        return store.remove(resource, (meta.get("namespace", ""), meta["name"])), True
    already = meta.get("deletionGracePeriodSeconds")
    if meta.get("deletionTimestamp") and (already is None or already <= grace):
        return record, False
    obj = record.copy()
    obj["metadata"].setdefault("deletionTimestamp", now())
    obj["metadata"]["deletionGracePeriodSeconds"] = grace
    if resource is NAMESPACES:
        obj.setdefault("status", {})["phase"] = "Terminating"
    return store.put(resource, obj), False


def finish(store: Store, resource: Resource, record: Record) -> bool:
    """Remove an object that is being deleted once nothing holds it any more."""
    meta = record.obj["metadata"]
    waits = meta.get("finalizers") or meta.get("deletionGracePeriodSeconds") or resource is NAMESPACES
    if not meta.get("deletionTimestamp") or waits:
        return False
    store.remove(resource, (meta.get("namespace", ""), meta["name"]))
    return True


def _grace(resource: Resource, record: Record, options: Object) -> int:
    if resource is not PODS:
        return 0
    spec, status = record.obj["spec"], record.obj.get("status") or {}
    if not spec.get("nodeName") or status.get("phase") in ("Succeeded", "Failed"):
        return 0
    asked = options.get("gracePeriodSeconds")
    grace: int = spec.get("terminationGracePeriodSeconds", 30) if asked is None else asked
    return max(0, grace)
