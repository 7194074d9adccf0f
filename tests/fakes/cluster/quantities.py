"""Amounts of resources: cpu in cores, everything else in bytes or pieces."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from decimal import Decimal

from kubernetes.utils.quantity import parse_quantity

from tests.fakes.cluster.resources import Object

Amounts = Counter[str]
"""Resource name to a whole number: millicores of cpu, bytes, pieces."""


@functools.lru_cache(maxsize=4096)
def amount(name: str, text: str) -> int:
    """One quantity in its smallest unit. Raises ValueError for what is no quantity."""
    value: Decimal = parse_quantity(text)
    return int(value * 1000) if name.rpartition(".")[2] == "cpu" else int(value)


def amounts(quantities: Mapping[str, object] | None) -> Amounts:
    """A resource list."""
    return Counter({name: amount(name, str(text)) for name, text in (quantities or {}).items()})


def render(name: str, value: int) -> str:
    """A quantity as objects carry it."""
    return f"{value}m" if name.rpartition(".")[2] == "cpu" else str(value)


def of_pod(spec: Object, which: str) -> Amounts:
    """A pod's ``requests`` or ``limits``: the sum of its containers, or its largest init container if that is
    more."""
    steady: Amounts = Counter()
    peak: Amounts = Counter()
    for container in spec["containers"]:
        steady += amounts(container["resources"].get(which))
    for container in spec.get("initContainers") or []:
        peak |= amounts(container["resources"].get(which))
    return steady | peak
