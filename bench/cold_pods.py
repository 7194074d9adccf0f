"""Start latency of 64 concurrent cold pods on the Kubernetes backend, and the share of the backend's code.

The fake cluster runs in a separate process, so that the CPU time of this one is the backend's. After two
sandboxes, whose starts include the network probe, one is opened alone, then all at once. The stages of
each pod are measured: creation accepted, observed running, handed out. The time spent waiting for the
backend's own write limit is reported separately. Run: ``python -m bench.cold_pods [--quick] [--set
KEY=VALUE]``, with settings of ``sandbox.kubernetes``; results with the defaults go to
``bench/results/cold_pods.json``.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.harness import store
from engine.config.base import parse_settings
from engine.config.kubernetes import KubernetesConfig
from engine.config.sandbox import SandboxConfig
from engine.sandbox.kubernetes import bring_up
from engine.sandbox.kubernetes.api.client import KubeApi
from engine.sandbox.kubernetes.backend import KubernetesBackend
from engine.sandbox.kubernetes.fleet import Fleet
from tests.builders.kubernetes_builders import SPEC, apply, build_reference
from tests.fakes.cluster import ClusterProcess

PODS = 64
_STAGES = ("asked", "accepted", "running", "handed out")


class Stages:
    """Times at which each pod reached each stage, seconds of one clock."""

    def __init__(self) -> None:
        self.times: dict[str, dict[str, float]] = {}
        self.held: list[float] = []
        """Time each write waited for the backend's own limit, s."""

    def note(self, pod: str, stage: str) -> None:
        """Record that a pod reached a stage now."""
        self.times.setdefault(pod, {})[stage] = time.perf_counter()

    def lasted(self, until: str) -> list[float]:
        """Return the time each pod took since the previous stage, s."""
        before = _STAGES[_STAGES.index(until) - 1]
        return [reached[until] - reached[before] for reached in self.times.values()]


@contextmanager
def observed(stages: Stages) -> Iterator[None]:
    """Record the stages of all pods started inside the context."""
    create, wait, turn = Fleet._create, bring_up.wait_until_running, KubeApi._wait_for_turn

    async def creating(self: Fleet, pod: Any, token: bytes) -> None:
        stages.note(pod.name, "asked")
        await create(self, pod, token)
        stages.note(pod.name, "accepted")

    async def waiting(config: KubernetesConfig, informer: Any, name: str) -> Any:
        pod = await wait(config, informer, name)
        stages.note(name, "running")
        return pod

    async def taking_turn(self: KubeApi) -> None:
        began = time.perf_counter()
        await turn(self)
        stages.held.append(time.perf_counter() - began)

    Fleet._create, KubeApi._wait_for_turn = creating, taking_turn  # type: ignore[method-assign]
    bring_up.wait_until_running = waiting
    try:
        yield
    finally:
        Fleet._create, KubeApi._wait_for_turn = create, turn  # type: ignore[method-assign]
        bring_up.wait_until_running = wait


async def open_at_once(cluster: ClusterProcess, backend: KubernetesBackend, count: int) -> dict[str, Any]:
    """Open a number of cold sandboxes concurrently and close them."""
    stages = Stages()
    await cluster.switch("reset")
    async with AsyncExitStack() as stack:

        async def one() -> None:
            sandbox = await stack.enter_async_context(backend.open(SPEC))
            stages.note(sandbox.id, "handed out")

        with observed(stages):
            began, cpu_began = time.perf_counter(), time.process_time()
            await asyncio.gather(*(one() for _ in range(count)))
            wall, cpu = time.perf_counter() - began, time.process_time() - cpu_began
        state = await cluster.state()
    await cluster.settled(120)
    return {
        "pods": count,
        "wall_s": round(wall, 3),
        "own_cpu_s": round(cpu, 3),
        "own_share": round(cpu / wall, 3),
        "writes": state["writes"],
        "reads": state["reads"],
        "held_max_s": round(max(stages.held), 3),
        **{f"{stage}_p50_s": round(statistics.median(stages.lasted(stage)), 3) for stage in _STAGES[1:]},
        **{f"{stage}_max_s": round(max(stages.lasted(stage)), 3) for stage in _STAGES[1:]},
    }


async def measure(count: int, settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Measure one pod alone and a number of concurrent pods."""
    with tempfile.TemporaryDirectory(prefix="bench-cold-pods-") as folder:
        home = Path(folder)
        build_reference(home)
        async with ClusterProcess(home) as cluster:
            kubernetes = KubernetesConfig.model_validate(
                {"kubeconfig": str(cluster.kubeconfig), "allow_local_images": True, **settings}
            )
            admin = await KubeApi.connect(kubernetes)
            await apply(admin)
            await admin.close()
            limits = SPEC.limits
            config = SandboxConfig(
                backend="kubernetes",
                kubernetes=kubernetes,
                max_live=count,
                max_starting=count,
                memory_mb=limits.memory_mb,
                processes=limits.processes,
                disk_mb=limits.disk_mb,
            )
            backend = KubernetesBackend(config)
            try:
                async with backend.open(SPEC), backend.open(SPEC):  # the network probe runs with these
                    pass
                await cluster.settled(60)
                return [await open_at_once(cluster, backend, number) for number in (1, count)]
            finally:
                await backend.close()


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="16 pods instead of 64")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="settings")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    settings = parse_settings(options.settings)
    rows = asyncio.run(measure(16 if options.quick else PODS, settings))
    for name in rows[0]:
        print(f"{name:<18}" + "".join(f"{row[name]!s:>12}" for row in rows))
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "load_before": round(load, 1)}
    store("cold_pods", {"machine": machine, "measured": rows}, quick=options.quick or bool(settings))


if __name__ == "__main__":
    main()
