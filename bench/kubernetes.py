"""512 graded rollouts on the Kubernetes backend with a fake cluster and injected faults.

A scripted agent edits a file, runs it and submits, in its own pod, through the real scheduler, pool,
agent loop and tools; the grader then runs the task's tests on its patch in a new pod of the same pool.
Every other sibling's edit is wrong. Half of the tasks are known to be deterministic: verdicts of identical
patches are re-used there, as in training; on the other half every patch is graded. Meanwhile the API server
fails, drops watches, returns stale lists and evicts pods. Pods are real local sandboxes (two per agent,
because its changes are compared with the original), so the result depends on the machine's cores and load.
Run: ``python -m bench.kubernetes [--quick]``; results go to ``bench/results/kubernetes.json``.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.harness import store
from engine.config.kubernetes import KubernetesConfig
from engine.config.rollout import GradingConfig, RolloutConfig
from engine.config.sandbox import SandboxConfig
from engine.grading.grader import Grader
from engine.inference.base import GenerationContext
from engine.rollout import GroupRequest
from engine.sandbox.kubernetes.api.client import KubeApi
from engine.sandbox.kubernetes.backend import KubernetesBackend
from engine.sandbox.kubernetes.owner import leases_path
from engine.sandbox.pool.pool import SandboxPool
from engine.types import TaskRow, Trajectory
from tests.builders.dataset_builders import BROKEN, broken_task, write_toy
from tests.builders.kubernetes_builders import NAMESPACE, apply, kubernetes_config
from tests.builders.rollout_builders import Recorder, TextPolicy, quick_agent, respond, swe_scheduler
from tests.fakes.cluster import FakeCluster, Fault, FaultKind

BAR_S, BAR_LIVE, BAR_WRITES = 150.0, 1.1, 4.0
MAX_LIVE, MAX_STARTING, MAX_GRADING, GROUP = 32, 12, 12, 8
PODS = ("pods",)
RUN_ID = "bench"
RIGHT, WRONG = BROKEN[0], BROKEN[1].replace("<", "==")


def faults() -> list[Fault]:
    """Return the injected faults and their rates."""
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


def turn(context: GenerationContext) -> str:
    """Return the scripted response of a turn: siblings with an even index fix the bug, the others do not."""
    edit = RIGHT if context.key.index % 2 == 0 else WRONG
    turns = [
        respond("file_editor", command="str_replace", path="toy/numbers.py", old_str=BROKEN[1], new_str=edit),
        respond("execute_bash", cmd="python3 -c 'import toy.numbers; print(toy.numbers.clamp(5, 0, 10))'"),
        respond("finish", command="submit"),
    ]
    return turns[len(context.steps)]


def tasks(home: Path, count: int) -> list[TaskRow]:
    """Return tasks on one broken package; every other task is not known to be deterministic."""
    row = broken_task(home, write_toy(home / "source"))
    return [
        replace(
            row,
            task=replace(row.task, id=f"task-{number}", instance_id=f"toy__numbers-{number}"),
            answer=replace(row.answer, deterministic=number % 2 == 0),
        )
        for number in range(count)
    ]


async def measure(rollouts: int) -> dict[str, Any]:
    """Collect a number of rollouts and return the counts."""
    with tempfile.TemporaryDirectory(prefix="bench-kubernetes-") as folder:
        home = Path(folder)
        rows = await asyncio.to_thread(tasks, home, rollouts // GROUP)
        async with FakeCluster(home, seed=1, pod_pids_limit=64) as cluster:
            admin = await KubeApi.connect(KubernetesConfig(kubeconfig=str(cluster.kubeconfig)))
            await apply(admin)
            for fault in faults():
                cluster.faults.add(fault)
            cluster.counters.reset()
            results = await collect(cluster, rows)
            cluster.faults.clear()
            results["left"]["leases"] = len((await admin.list(leases_path(NAMESPACE)))["items"])
            await admin.close()
            return results


async def collect(cluster: FakeCluster, rows: Sequence[TaskRow]) -> dict[str, Any]:
    """Roll out and grade on a prepared cluster, then wait until no pod is left."""
    config = SandboxConfig(
        backend="kubernetes",
        kubernetes=kubernetes_config(cluster, heartbeat_s=15.0, owner_timeout_s=60.0),
        max_live=MAX_LIVE,
        max_starting=MAX_STARTING,
        memory_mb=96,
        disk_mb=32,
        start_retries=4,
    )
    pool, recorder = SandboxPool(KubernetesBackend(config), config), Recorder()
    # No audits: the bench measures sandboxes, not tests.
    grading = GradingConfig(timeout_s=60.0, max_parallel=MAX_GRADING, counterfactual="off")
    scheduler = swe_scheduler(
        pool,
        TextPolicy(turn),
        agent=quick_agent(),
        sandbox=config,
        grader=Grader(backend=pool, config=grading, sandbox=config, run_id=RUN_ID),
        rollout=RolloutConfig(max_concurrent=2 * MAX_LIVE),
        observer=recorder,
    )
    began = time.perf_counter()
    await scheduler.collect([GroupRequest(row=row, iteration=0, phase="train", size=GROUP) for row in rows])
    wall = time.perf_counter() - began
    left = {"pods": 0, "sandboxes": 0}
    try:
        await cluster.settled(60)  # before the backend is closed, which would remove leaked pods
    except TimeoutError:
        left = {"pods": cluster.counters.pods_live, "sandboxes": cluster.kubelet.boxes}
    await pool.close()
    counters = cluster.counters
    return {
        "wall_s": round(wall, 1),
        "bar_s": BAR_S,
        **outcomes(len(rows) * GROUP, recorder.finished),
        "left": left,
        "pods_created": counters.pods_created,
        "pods_peak": counters.pods_peak,
        "wanted": MAX_LIVE,
        "writes_per_rollout": round(counters.writes / len(rows) / GROUP, 2),
        "writes_per_pod": round(counters.writes / counters.pods_created, 2),
        "reads_per_rollout": round(counters.reads / len(rows) / GROUP, 2),
        "faults": {fault.kind.value: fault.hits for fault in cluster.faults.all()},
    }


def outcomes(rollouts: int, finished: Sequence[Trajectory]) -> dict[str, Any]:
    """Return the counts of outcomes, and of rollouts lost, reported twice or graded wrongly."""
    keys = Counter(trajectory.key for trajectory in finished)
    grades = [(ended.key.index, ended.grade) for ended in finished if ended.grade is not None]
    expected = ("passed", "failed")
    return {
        "rollouts": rollouts,
        "lost": rollouts - len(keys),
        "duplicated": keys.total() - len(keys),
        "ended": dict(Counter(str(ended.termination) for ended in finished)),
        "verdicts": dict(Counter(str(grade.verdict) for _, grade in grades)),
        "misjudged": rollouts - sum(str(grade.verdict) == expected[index % 2] for index, grade in grades),
        "graded_in_a_pod": sum(not grade.reused for _, grade in grades),
        "verdicts_reused": sum(grade.reused for _, grade in grades),
    }


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="64 rollouts instead of 512")
    quick = parser.parse_args().quick
    load = os.getloadavg()[0]
    results = asyncio.run(measure(64 if quick else 512))
    rows = [
        ("wall", f"{results['wall_s']} s", f"{BAR_S:g} s"),
        ("pods at once / wanted", f"{results['pods_peak']} / {MAX_LIVE}", f"{BAR_LIVE:g} ×"),
        (
            "API writes per rollout / pod",
            f"{results['writes_per_rollout']} / {results['writes_per_pod']}",
            f"{BAR_WRITES:g} / –",
        ),
        (
            "left: pods, sandboxes, leases",
            ", ".join(str(count) for count in results["left"].values()),
            "0, 0, 0",
        ),
        ("trajectories lost / duplicated", f"{results['lost']} / {results['duplicated']}", "0 / 0"),
        ("verdicts missing or wrong", results["misjudged"], "0"),
    ]
    print(f"{results['rollouts']} rollouts ended {results['ended']}; verdicts {results['verdicts']}")
    print(f"graded in a pod {results['graded_in_a_pod']}, verdicts re-used {results['verdicts_reused']}")
    print(f"faults {results['faults']}; load {load:.1f}")
    for label, value, bar in rows:
        print(f"{label:<34}{value!s:>16}{bar:>10}")
    machine = {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load_before": round(load, 1),
        "load_after": round(os.getloadavg()[0], 1),
    }
    store("kubernetes", {"machine": machine, **results}, quick=quick)


if __name__ == "__main__":
    main()
