"""How objects end: preconditions, grace, finalizers, propagation."""

from __future__ import annotations

from tests.fakes.cluster.errors import conflict
from tests.fakes.cluster.objects import now
from tests.fakes.cluster.resources import NAMESPACES, PODS, Object, Resource
from tests.fakes.cluster.store import Record, Store

_FOREGROUND, _ORPHAN = "foregroundDeletion", "orphan"


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

    Raises:
        ApiError: 409, a precondition does not hold.
    """
    options = options or {}
    meta = record.obj["metadata"]
    _preconditions(resource, record, options.get("preconditions") or {})
    grace = _grace(resource, record, options)
    finalizers = _finalizers(record, options)
    if not grace and not finalizers and resource is not NAMESPACES:
        return store.remove(resource, (meta.get("namespace", ""), meta["name"])), True
    already = meta.get("deletionGracePeriodSeconds")
    if meta.get("deletionTimestamp") and (already is None or already <= grace):
        return record, False
    obj = record.copy()
    obj["metadata"].setdefault("deletionTimestamp", now())
    obj["metadata"]["deletionGracePeriodSeconds"] = grace
    if finalizers:
        obj["metadata"]["finalizers"] = finalizers
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


def _preconditions(resource: Resource, record: Record, wanted: Object) -> None:
    meta = record.obj["metadata"]
    for field, name in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
        if wanted.get(field) not in (None, meta[field]):
            why = (
                f"Precondition failed: {name} in precondition: {wanted[field]}, "
                f"{name} in object meta: {meta[field]}"
            )
            raise conflict(resource, meta["name"], why)


def _grace(resource: Resource, record: Record, options: Object) -> int:
    if resource is not PODS:
        return 0
    spec, status = record.obj["spec"], record.obj.get("status") or {}
    if not spec.get("nodeName") or status.get("phase") in ("Succeeded", "Failed"):
        return 0
    asked = options.get("gracePeriodSeconds")
    grace: int = spec.get("terminationGracePeriodSeconds", 30) if asked is None else asked
    return max(0, grace)


def _finalizers(record: Record, options: Object) -> list[str]:
    finalizers = list(record.obj["metadata"].get("finalizers") or ())
    policy = options.get("propagationPolicy")
    if options.get("orphanDependents"):
        policy = "Orphan"
    extra = {"Foreground": _FOREGROUND, "Orphan": _ORPHAN}.get(policy or "")
    if extra and extra not in finalizers:
        finalizers.append(extra)
    return finalizers
