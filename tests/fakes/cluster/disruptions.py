"""PodDisruptionBudgets: how many pods may be evicted now."""

from __future__ import annotations

from tests.fakes.cluster.errors import too_many_requests
from tests.fakes.cluster.resources import PDBS, PODS, Object
from tests.fakes.cluster.selectors import labels_of
from tests.fakes.cluster.store import Store


def disruptions(store: Store, budget: Object) -> Object:
    """A budget's status."""
    spec = budget["spec"]
    match = labels_of(spec.get("selector"))
    pods = [one.obj for one in store.all(PODS, budget["metadata"]["namespace"]) if match(one.obj)]
    expected = [pod for pod in pods if pod["status"].get("phase") not in ("Succeeded", "Failed")]
    healthy = sum(_is_healthy(pod) for pod in expected)
    if (least := spec.get("minAvailable")) is not None:
        desired = _number(least, len(expected))
    else:
        desired = len(expected) - _number(spec.get("maxUnavailable", 1), len(expected))
    return {
        "currentHealthy": healthy,
        "desiredHealthy": max(0, desired),
        "disruptionsAllowed": max(0, healthy - desired),
        "expectedPods": len(expected),
    }


def check_eviction(store: Store, pod: Object) -> None:
    """Raise ApiError 429 where a budget does not let the pod go."""
    for record in store.all(PDBS, pod["metadata"]["namespace"]):
        if not labels_of(record.obj["spec"].get("selector"))(pod):
            continue
        status = disruptions(store, record.obj)
        if not status["disruptionsAllowed"]:
            error = too_many_requests("Cannot evict pod as it would violate the pod's disruption budget.", 10)
            why = (
                f"The disruption budget {record.obj['metadata']['name']} needs {status['desiredHealthy']} "
                f"healthy pods and has {status['currentHealthy']} currently"
            )
            error.details["causes"] = [{"reason": "DisruptionBudget", "message": why}]
            raise error


def _is_healthy(pod: Object) -> bool:
    conditions = pod["status"].get("conditions") or []
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
    return ready and not pod["metadata"].get("deletionTimestamp")


def _number(value: int | str, of: int) -> int:
    if isinstance(value, str) and value.endswith("%"):
        return -(-of * int(value[:-1]) // 100)
    return int(value)
