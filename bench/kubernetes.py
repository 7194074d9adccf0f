"""512 rollouts through the Kubernetes backend, on the fake cluster, with faults injected.

A scripted agent edits a file, runs it and submits, in a pod of its own, through the real scheduler, pool,
agent loop and tools; the API server fails, drops watches, lists stale things and evicts pods meanwhile. Every
pod is two real local sandboxes, so that two cores and a shared machine are felt.
Run: ``python -m bench.kubernetes [--quick]``; results go to ``bench/results/kubernetes.json``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from engine.config.kubernetes import KubernetesConfig
from engine.config.rollout import RolloutConfig
from engine.config.sandbox import SandboxConfig
from engine.rollout import GroupRequest
from engine.sandbox.images import build_image
from engine.sandbox.kubernetes.api import KubeApi
from engine.sandbox.kubernetes.backend import KubernetesBackend
from tests.fakes.cluster import FakeCluster, Fault, FaultKind
from tests.kubernetes_builders import apply, kubernetes_config
from tests.rollout_builders import Recorder, TextPolicy, make_row, quick_agent, respond, swe_scheduler

BAR_S, BAR_LIVE, BAR_WRITES = 180.0, 1.1, 4.0
MAX_LIVE, MAX_STARTING, GROUP = 32, 12, 8
PODS = ("pods",)
TURNS = [
    respond("file_editor", command="str_replace", path="pkg/m.py", old_str="a - 1", new_str="a + 1"),
    respond("execute_bash", cmd="python3 -c 'import pkg.m; print(pkg.m.f(1))'"),
    respond("finish", command="submit"),
]


def faults() -> list[Fault]:
    """What goes wrong, and how often."""
    return [
        Fault(FaultKind.SERVER_ERROR, verbs={"create", "delete", "patch"}, probability=0.02, resources=PODS),
        Fault(FaultKind.TOO_MANY_REQUESTS, verbs={"create", "delete"}, probability=0.01, resources=PODS),
        Fault(FaultKind.CREATED_BUT_ERROR, verbs={"create"}, probability=0.02, resources=PODS),
        Fault(FaultKind.HANG, verbs={"create", "delete"}, probability=0.005, resources=PODS),
        Fault(FaultKind.DROP_WATCH, delay_s=5.0, resources=PODS),
        Fault(FaultKind.GONE, probability=0.2, resources=PODS),
        Fault(FaultKind.DUPLICATE, probability=0.2, resources=PODS),
        Fault(FaultKind.STALE_LIST, probability=0.5, resources=PODS),
        Fault(FaultKind.EVICT, delay_s=0.5, probability=0.02),
    ]


async def measure(rollouts: int) -> dict[str, Any]:
    """Collect so many rollouts and count everything."""
    with tempfile.TemporaryDirectory(prefix="bench-kubernetes-") as folder:
        home = Path(folder)
        tree = home / "tree"
        (tree / "pkg").mkdir(parents=True)
        (tree / "pkg" / "m.py").write_text("def f(a):\n    return a - 1\n")
        build_image(home, "bench", tree)
        async with FakeCluster(home, seed=1, pod_pids_limit=64) as cluster:
            admin = await KubeApi.connect(KubernetesConfig(kubeconfig=str(cluster.kubeconfig)))
            await apply(admin)
            await admin.close()
            for fault in faults():
                cluster.faults.add(fault)
            cluster.counters.reset()
            return await collect(cluster, rollouts)


async def collect(cluster: FakeCluster, rollouts: int) -> dict[str, Any]:
    """Roll out on a prepared cluster, then wait until nothing is left."""
    config = SandboxConfig(
        backend="kubernetes",
        kubernetes=kubernetes_config(cluster, heartbeat_s=15.0, owner_timeout_s=60.0),
        max_live=MAX_LIVE,
        max_starting=MAX_STARTING,
        memory_mb=96,
        disk_mb=32,
        start_retries=4,
    )
    backend, recorder = KubernetesBackend(config), Recorder()
    scheduler = swe_scheduler(
        backend,
        TextPolicy(lambda context: TURNS[len(context.steps)]),
        agent=quick_agent(),
        sandbox=config,
        rollout=RolloutConfig(max_concurrent=2 * MAX_LIVE),
        observer=recorder,
    )
    rows = [make_row(f"task-{number}", image="local:bench") for number in range(rollouts // GROUP)]
    requests = [GroupRequest(row=row, iteration=0, phase="train", size=GROUP) for row in rows]
    began = time.perf_counter()
    await scheduler.collect(requests)
    wall = time.perf_counter() - began
    await backend.close()
    leaked = 0
    try:
        await cluster.settled(60)
    except TimeoutError:
        leaked = cluster.counters.pods_live
    keys = Counter(trajectory.key for trajectory in recorder.finished)
    ended = Counter(str(trajectory.termination) for trajectory in recorder.finished)
    return {
        "rollouts": rollouts,
        "wall_s": round(wall, 1),
        "bar_s": BAR_S,
        "lost": rollouts - len(keys),
        "duplicated": sum(count - 1 for count in keys.values()),
        "ended": dict(ended),
        "leaked_pods": leaked,
        "pods_created": cluster.counters.pods_created,
        "pods_peak": cluster.counters.pods_peak,
        "wanted": MAX_LIVE,
        "writes_per_rollout": round(cluster.counters.writes / rollouts, 2),
        "reads_per_rollout": round(cluster.counters.reads / rollouts, 2),
        "faults": {fault.kind.value: fault.hits for fault in cluster.faults.all()},
    }


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="64 rollouts instead of 512")
    quick = parser.parse_args().quick
    load = os.getloadavg()[0]
    found = asyncio.run(measure(64 if quick else 512))
    rows = [
        ("wall", f"{found['wall_s']} s", f"{BAR_S:g} s"),
        ("pods at once / wanted", f"{found['pods_peak']} / {MAX_LIVE}", f"{BAR_LIVE:g} ×"),
        ("API writes per rollout", found["writes_per_rollout"], f"{BAR_WRITES:g}"),
        ("pods leaked", found["leaked_pods"], "0"),
        ("trajectories lost / duplicated", f"{found['lost']} / {found['duplicated']}", "0 / 0"),
    ]
    print(f"{found['rollouts']} rollouts ended {found['ended']}; faults {found['faults']}; load {load:.1f}")
    for what, value, bar in rows:
        print(f"{what:<34}{value!s:>16}{bar:>10}")
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "load_before": round(load, 1)}
    results = Path(__file__).parent / "results" / "kubernetes.json"
    results.parent.mkdir(exist_ok=True)
    results.write_text(json.dumps({"machine": machine, **found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
