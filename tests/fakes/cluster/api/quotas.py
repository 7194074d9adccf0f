"""Amounts of resources (cpu, memory, pods), and the ResourceQuotas that limit them in a namespace."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from decimal import Decimal

from kubernetes.utils.quantity import parse_quantity

from tests.fakes.cluster.api.errors import forbidden
from tests.fakes.cluster.api.resources import PODS, QUOTAS, Object
from tests.fakes.cluster.api.store import Store

Amounts = Counter[str]
"""Resource name to a whole number: millicores of cpu, bytes, pieces."""


@functools.lru_cache(maxsize=4096)
def amount(name: str, text: str) -> int:
    """Return a quantity in its smallest unit. Raises ValueError for a malformed one."""
    value: Decimal = parse_quantity(text)
    return int(value * 1000) if name.rpartition(".")[2] == "cpu" else int(value)


def amounts(quantities: Mapping[str, object] | None) -> Amounts:
    """Return the amounts of a resource list."""
    return Counter({name: amount(name, str(text)) for name, text in (quantities or {}).items()})


def render(name: str, value: int) -> str:
    """Return an amount as a quantity."""
    return f"{value}m" if name.rpartition(".")[2] == "cpu" else str(value)


def of_pod(spec: Object, which: str) -> Amounts:
    """Return a pod's ``requests`` or ``limits``: the sum of its containers, or its largest init container if
    that is more."""
    steady: Amounts = Counter()
    peak: Amounts = Counter()
    for container in spec["containers"]:
        steady += amounts(container["resources"].get(which))
    for container in spec.get("initContainers") or []:
        peak |= amounts(container["resources"].get(which))
    return steady | peak


def check(store: Store, pod: Object) -> None:
    """Count a new pod against the namespace's quotas. Raises ApiError 403 naming the exceeded one."""
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    used, wanted = usage(store, namespace), _uses(pod)
    for record in store.all(QUOTAS, namespace):
        hard = amounts(record.obj["spec"].get("hard"))
        over = [key for key in sorted(hard) if wanted[key] and used[key] + wanted[key] > hard[key]]
        if over:
            requested, taken, limited = (
                ",".join(f"{key}={render(key, table[key])}" for key in over) for table in (wanted, used, hard)
            )
            raise forbidden(
                PODS,
                name,
                f"exceeded quota: {record.obj['metadata']['name']}, requested: {requested}, used: {taken}, "
                f"limited: {limited}",
            )


def usage(store: Store, namespace: str) -> Amounts:
    """Return the amounts that the namespace's live pods use."""
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
