"""Comparison of what a run asks with what a Ray cluster has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from ipaddress import ip_address
from urllib.parse import urlsplit

from engine.config.launcher import RayConfig
from engine.config.placement import Bundles
from engine.errors import Problem
from workers.launchers.ray.jobs import Cluster

OLDEST = (2, 50)
"""Oldest version of Ray whose interface is known to fit."""
GB = 1e9


def missing(settings: RayConfig, cluster: Cluster, bundles: Sequence[Bundles] = ()) -> list[Problem]:
    """Return what a cluster lacks for a run, each problem with the setting that asks for it.

    Args:
        settings: what the run's own process asks of one node.
        cluster: what there is.
        bundles: what its other processes ask; they fit one kind after the other.
    """
    if _version(cluster.ray_version) < OLDEST:
        known, found = ".".join(map(str, OLDEST)), cluster.ray_version or "of an unknown version"
        return [Problem(f"the cluster runs Ray {found}; {known} or newer is needed", "launcher.ray.address")]
    if not cluster.nodes:
        return [Problem("the cluster has no node that is alive", "launcher.ray.address")]
    asked = list(_asked(settings))
    problems = [
        Problem(_lack(name, wanted, cluster), setting)
        for setting, name, wanted in asked
        if max(node.get(name, 0.0) for node in cluster.nodes) < wanted
    ]
    fits = any(all(node.get(name, 0.0) >= wanted for _, name, wanted in asked) for node in cluster.nodes)
    if not problems and not fits:
        sum_asked = ", ".join(_amount(name, wanted) for _, name, wanted in asked)
        problems = [Problem(f"asks {sum_asked}, but no single node has all of it", "launcher.ray")]
    if not problems:
        problems = [problem for one in bundles if (problem := _too_large(one, cluster))]
    if not problems and bundles:
        own = {name: wanted for _, name, wanted in asked}
        problems = [problem] if (problem := _too_many(bundles, own, cluster)) else []
    return problems


def unreachable_web(web_url: str, address: str) -> Problem | None:
    """Return the problem of a web server on loopback that nodes of a cluster elsewhere cannot reach."""
    if _is_loopback(web_url) and not _is_loopback(address):
        return Problem(
            f"the cluster's nodes cannot send events to {web_url}: set TRAINYARD_WEB_URL to an address of "
            "the web server that they reach",
            "launcher.ray.address",
        )
    return None


def reservation(settings: RayConfig) -> Mapping[str, float]:
    """Return the resources that a job reserves, by Ray's names."""
    return {name: wanted for _, name, wanted in _asked(settings)}


def _asked(settings: RayConfig) -> Iterator[tuple[str, str, float]]:
    """Yield setting, Ray's name and amount of everything that is asked for."""
    asked = [
        ("cpus", "CPU", settings.cpus),
        ("gpus", "GPU", settings.gpus),
        ("memory_gb", "memory", settings.memory_gb * GB),
        *(("resources", name, amount) for name, amount in settings.resources.items()),
    ]
    for setting, name, wanted in asked:
        if wanted:
            yield f"launcher.ray.{setting}", name, wanted


def _too_large(bundles: Bundles, cluster: Cluster) -> Problem | None:
    """Return the problem of bundles of which no node has room for one."""
    for name, amount in bundles.resources.items():
        largest = max(node.get(name, 0.0) for node in cluster.nodes)
        if largest < amount:
            found = _amount(name, largest, unit=False)
            return Problem(f"asks {bundles.describe(name)}, the largest node has {found}", bundles.setting)
    return None


def _too_many(bundles: Sequence[Bundles], own: Mapping[str, float], cluster: Cluster) -> Problem | None:
    """Return the problem of bundles that do not fit beside the run's own process, wherever that runs."""
    placed = max(
        _placed(bundles, [_rest(node, own) if node is home else node for node in cluster.nodes])
        for home in cluster.nodes
        if all(home.get(name, 0.0) >= amount for name, amount in own.items())
    )
    for number, (one, count) in enumerate(zip(bundles, placed, strict=True)):
        if count < one.count:
            others = [", ".join(_amount(*part) for part in own.items())] if own else []
            others += [str(other) for other in bundles[:number]]
            beside = f" beside the run's own {' and '.join(others)}" if others else ""
            return Problem(f"asks {one}, the cluster has room for {count}{beside}", one.setting)
    return None


def _placed(bundles: Sequence[Bundles], nodes: Sequence[Mapping[str, float]]) -> list[int]:
    """Return how many of each kind of bundles fit, placed one kind after the other."""
    free, placed = list(nodes), []
    for one in bundles:
        left = one.count
        for number, node in enumerate(free):
            count = min(left, _num_fitting(one.resources, node))
            free[number] = _rest(node, {name: count * amount for name, amount in one.resources.items()})
            left -= count
        placed.append(one.count - left)
    return placed


def _num_fitting(wanted: Mapping[str, float], node: Mapping[str, float]) -> int:
    """Return how many times a node has a set of resources."""
    return min(int(node.get(name, 0.0) // amount) for name, amount in wanted.items())


def _rest(node: Mapping[str, float], taken: Mapping[str, float]) -> dict[str, float]:
    return {name: amount - taken.get(name, 0.0) for name, amount in node.items()}


def _lack(name: str, wanted: float, cluster: Cluster) -> str:
    total = sum(node.get(name, 0.0) for node in cluster.nodes)
    asks = f"asks {_amount(name, wanted)}"
    if total < wanted:
        return f"{asks}, the cluster has {_amount(name, total, unit=False)}"
    largest = max(node.get(name, 0.0) for node in cluster.nodes)
    return f"{asks} on one node, the largest node has {_amount(name, largest, unit=False)}"


def _amount(name: str, amount: float, *, unit: bool = True) -> str:
    if name == "memory":
        return f"{amount / GB:.1f} GB" + " of memory" * unit
    words = {"CPU": "CPU", "GPU": "GPU"}.get(name, f"'{name}'")
    plural = "s" if words in ("CPU", "GPU") and amount != 1 else ""
    return f"{amount:g} {words}{plural}" if unit else f"{amount:g}"


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2] if part.isdigit())


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
