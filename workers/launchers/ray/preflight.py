"""Comparison of the resources of a run with those of a Ray cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from ipaddress import ip_address
from urllib.parse import urlsplit

from engine.config.launcher import RayConfig
from engine.config.placement import Bundles
from engine.errors import Problem
from workers.launchers.ray.jobs import Cluster

OLDEST = (2, 50)
"""Oldest version of Ray with a known compatible interface."""
GB = 1e9


def missing(settings: RayConfig, cluster: Cluster, bundles: Sequence[Bundles] = ()) -> list[Problem]:
    """Return the resources that a cluster lacks for a run, each as a problem of the requesting setting.

    Args:
        settings: resources that the run's own process requests on one node.
        cluster: version and nodes of the cluster.
        bundles: resources of the run's other processes, in the order of their placement.
    """
    if _version(cluster.ray_version) < OLDEST:
        oldest, version = ".".join(map(str, OLDEST)), cluster.ray_version or "of an unknown version"
        message = f"the cluster runs Ray {version}; {oldest} or newer is needed"
        return [Problem(message, "launcher.ray.address")]
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
        problems = [problem for kind in bundles if (problem := _too_large(kind, cluster))]
    if not problems and bundles:
        own = {name: wanted for _, name, wanted in asked}
        problems = [problem] if (problem := _too_many(bundles, own, cluster)) else []
    return problems


def unreachable_web(web_url: str, address: str) -> Problem | None:
    """Return a problem if nodes of a remote cluster cannot reach the web server, which is on loopback."""
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
    """Yield setting, Ray's name and amount of each requested resource."""
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
    """Return a problem if no node is large enough for a single bundle."""
    for name, amount in bundles.resources.items():
        largest = max(node.get(name, 0.0) for node in cluster.nodes)
        if largest < amount:
            available = _amount(name, largest, unit=False)
            message = f"asks {bundles.describe(name)}, the largest node has {available}"
            return Problem(message, bundles.setting)
    return None


def _too_many(bundles: Sequence[Bundles], own: Mapping[str, float], cluster: Cluster) -> Problem | None:
    """Return a problem if the bundles do not fit beside the run's own process, on whatever node that runs."""
    placed = max(
        _placed(bundles, [_rest(node, own) if node is home else node for node in cluster.nodes])
        for home in cluster.nodes
        if all(home.get(name, 0.0) >= amount for name, amount in own.items())
    )
    for number, (kind, count) in enumerate(zip(bundles, placed, strict=True)):
        if count < kind.count:
            occupants = [", ".join(_amount(*part) for part in own.items())] if own else []
            occupants += [str(earlier) for earlier in bundles[:number]]
            beside = f" beside the run's own {' and '.join(occupants)}" if occupants else ""
            return Problem(f"asks {kind}, the cluster has room for {count}{beside}", kind.setting)
    return None


def _placed(bundles: Sequence[Bundles], nodes: Sequence[Mapping[str, float]]) -> list[int]:
    """Place the bundles one kind after the other; return the number of placed bundles of each kind."""
    free, placed = list(nodes), []
    for kind in bundles:
        left = kind.count
        for number, node in enumerate(free):
            count = min(left, _num_fitting(kind.resources, node))
            free[number] = _rest(node, {name: count * amount for name, amount in kind.resources.items()})
            left -= count
        placed.append(kind.count - left)
    return placed


def _num_fitting(wanted: Mapping[str, float], node: Mapping[str, float]) -> int:
    """Return the number of sets of resources that fit on a node."""
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
