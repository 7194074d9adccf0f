"""ResourceQuota: what the pods of a namespace may use."""

from __future__ import annotations

from collections import Counter

from tests.fakes.cluster.errors import forbidden
from tests.fakes.cluster.quantities import Amounts, amounts, of_pod, render
from tests.fakes.cluster.resources import PODS, QUOTAS, Object
from tests.fakes.cluster.store import Store


def check(store: Store, pod: Object) -> None:
    """Count a new pod against the namespace's quotas. Raises ApiError 403 naming the exceeded one."""
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    used, wanted = usage(store, namespace), _uses(pod)
    for record in store.all(QUOTAS, namespace):
        hard = amounts(record.obj["spec"].get("hard"))
        over = [key for key in sorted(hard) if wanted[key] and used[key] + wanted[key] > hard[key]]
        if over:
            shown = [
                ",".join(f"{key}={render(key, table[key])}" for key in over) for table in (wanted, used, hard)
            ]
            raise forbidden(
                PODS,
                name,
                f"exceeded quota: {record.obj['metadata']['name']}, requested: {shown[0]}, used: {shown[1]}, "
                f"limited: {shown[2]}",
            )


def usage(store: Store, namespace: str) -> Amounts:
    """What the namespace's living pods use."""
    used: Amounts = Counter()
    for record in store.all(PODS, namespace):
        if record.obj["status"].get("phase") not in ("Succeeded", "Failed"):
            used.update(_uses(record.obj))
    return used


def _uses(pod: Object) -> Amounts:
    uses: Amounts = Counter(pods=1)
    for which in ("requests", "limits"):
        uses.update({f"{which}.{name}": count for name, count in of_pod(pod["spec"], which).items()})
    return uses
