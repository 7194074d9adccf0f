"""CPU time per agent step and memory per live trajectory, in one process and over two rollout workers.

A stub engine in the run's process answers in tokens of the shipped tokenizer after a random time, chosen so
that the steps take about half a core; sandboxes are in memory and start 64 at a time, and every step and
trajectory is an event in a real spool. All trajectories are in flight at once. The bars are 1 ms of our own
CPU per step, all processes together, and an event loop held for 50 ms at most (p99.9).
Run: ``python -m bench.orchestrator [--quick]``; results go to ``bench/results/orchestrator.json``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import psutil

from bench.agent_step import CALLS, STEPS, output
from bench.harness import store
from engine.config.rollout import AgentConfig, RolloutConfig
from engine.config.sandbox import SandboxConfig
from engine.events.delivery.spool import SpoolSink
from engine.garbage import collect_rarely
from engine.inference.base import ChatRequest, ChatResponse
from engine.inference.scripted.tokens import TokenizedPolicy
from engine.models.loader import open_model
from engine.orchestrator.loop_probe import LoopProbe
from engine.orchestrator.watch.event_observer import EventObserver
from engine.processes.launchers import LocalProcesses
from engine.rollout import GroupRequest
from engine.sandbox.pool.pool import SandboxPool
from engine.tools.rendering import render_response
from engine.types import Group
from tests.builders.rollout_builders import PatchGrader, make_row, swe_scheduler
from tests.builders.worker_builders import MemorySettings, TurnsPolicy, opened_workers
from tests.fakes.memory_sandbox import MemoryBackend

MODEL = "builtin:quickstart"
LONG_STEPS = 150
"""Number of steps with about 64K tokens in total."""
TRAJECTORIES_PER_TURN_S = 400.0
"""Trajectories in flight for each second that a turn takes on average."""
STARTING, START_S = 64, 1.0
"""Sandboxes starting at once, and the seconds that a start takes on average."""
BAR_MS, HELD_BAR_MS = 1.0, 50.0
SAMPLE_S = 0.5
SOURCE = "".join(f"def f{n}(a):\n    return a + {n}\n\n\n" for n in range(400))
FILES = {"/testbed/pkg/m.py": SOURCE.encode()}


class PacedPolicy(TurnsPolicy):
    """Policy that returns each text after a random time."""

    def __init__(self, texts: Sequence[str], mean_s: float) -> None:
        super().__init__(texts)
        self._mean_s, self._random = mean_s, random.Random(0)

    async def respond(self, request: ChatRequest) -> ChatResponse:
        """Return the next text after half to one and a half of the mean time."""
        await asyncio.sleep(self._mean_s * self._random.uniform(0.5, 1.5))
        return await super().respond(request)


@dataclass(slots=True)
class Usage:
    """CPU seconds and memory of this process and its rollout workers."""

    own_cpu_s: float = 0.0
    workers_cpu_s: float = 0.0
    memory_mb: float = 0.0
    """Maximum growth of their total memory, MiB."""


def worker_processes() -> list[psutil.Process]:
    """Return the rollout workers of this process."""
    children = psutil.Process().children(recursive=True)
    return [child for child in children if child.cmdline()[1:] == ["-m", "engine.rollout.processes"]]


@contextlib.asynccontextmanager
async def measured() -> AsyncIterator[Usage]:
    """Measure the body; the yielded usage is complete at its end."""
    usage, processes = Usage(), [psutil.Process(), *worker_processes()]

    def resident_mb() -> float:
        return float(sum(process.memory_info().rss for process in processes)) / 2**20

    def cpu_s() -> list[float]:
        return [sum(process.cpu_times()[:2]) for process in processes]

    async def sample() -> None:
        while True:
            usage.memory_mb = max(usage.memory_mb, resident_mb() - before_mb)
            await asyncio.sleep(SAMPLE_S)

    before_mb, before = resident_mb(), cpu_s()
    sampling = asyncio.create_task(sample())
    try:
        yield usage
    finally:
        sampling.cancel()
        usage.memory_mb = max(usage.memory_mb, resident_mb() - before_mb)
        usage.own_cpu_s, *workers = (now - then for now, then in zip(cpu_s(), before, strict=True))
        usage.workers_cpu_s = sum(workers)


async def measure(workers: int, trajectories: int, steps: int) -> dict[str, float | int]:
    """Return the cost of trajectories in flight at once; 0 workers run them in this process."""
    agent = AgentConfig(prompt="deepswe_v1", max_steps=steps, max_context=1_000_000)
    sandbox = SandboxConfig(max_live=trajectories, max_starting=STARTING)
    turns = [render_response("because", CALLS[step % len(CALLS)], "xml") for step in range(steps)]
    paced = PacedPolicy(turns, trajectories / TRAJECTORIES_PER_TURN_S)
    policy = TokenizedPolicy(paced, open_model(MODEL, home=Path(), read=False).chat())
    pool = SandboxPool(MemoryBackend(FILES, command=output, start_s=START_S), sandbox)
    grader = PatchGrader()
    async with contextlib.AsyncExitStack() as opened:
        folder = opened.enter_context(tempfile.TemporaryDirectory())
        sink = opened.enter_context(contextlib.closing(SpoolSink(Path(folder), epoch=1)))
        observer = opened.enter_context(contextlib.closing(EventObserver(sink)))
        parts = None
        if workers:
            settings = MemorySettings(
                agent=agent, sandbox=sandbox, files=FILES, command=output, start_s=START_S
            )
            parts = await opened.enter_async_context(
                opened_workers(pool, grader, count=workers, launcher=LocalProcesses(), environments=settings)
            )
        scheduler = swe_scheduler(
            pool,
            policy,
            agent=agent,
            sandbox=sandbox,
            grader=grader,
            rollout=RolloutConfig(max_concurrent=trajectories),
            observer=observer,
            workers=parts,
        )
        request = GroupRequest(row=make_row(), iteration=0, phase="train", size=trajectories)
        started = time.perf_counter()
        async with LoopProbe() as probe, measured() as usage:
            (group,) = await scheduler.collect([request])
        return described(workers, group, usage, probe, time.perf_counter() - started)


def described(
    workers: int, group: Group, usage: Usage, probe: LoopProbe, wall_s: float
) -> dict[str, float | int]:
    """Return a row of the table."""
    steps = sum(len(trajectory.steps) for trajectory in group.trajectories)
    count = len(group.trajectories)
    return {
        "workers": workers,
        "trajectories": count,
        "steps": steps,
        "tokens_each": sum(len(trajectory.tokens) for trajectory in group.trajectories) // count,
        "cpu_ms_per_step": round(1000 * (usage.own_cpu_s + usage.workers_cpu_s) / steps, 3),
        "own_cpu_ms_per_step": round(1000 * usage.own_cpu_s / steps, 3),
        "kib_per_trajectory": round(1024 * usage.memory_mb / count),
        "held_p999_ms": round(probe.whole.metrics()["loop/held_p999_ms"], 1),
        "steps_per_s": round(steps / wall_s),
    }


def run(size: tuple[int, int, int]) -> dict[str, float | int]:
    """Return the result of ``measure``; call in a fresh process, whose memory has not grown before."""
    collect_rarely()
    return asyncio.run(measure(*size))


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="100 trajectories instead of 4,000")
    quick = parser.parse_args().quick
    load = os.getloadavg()[0]
    short, long = (100, 5) if quick else (4000, 100)
    sizes = [
        (workers, count, steps) for count, steps in ((short, STEPS), (long, LONG_STEPS)) for workers in (0, 2)
    ]
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as fresh:
        rows = list(fresh.map(run, sizes))
    print(" ".join(f"{name:>{max(len(name), 8)}}" for name in rows[0]))
    for row in rows:
        print(" ".join(f"{value:>{max(len(name), 8)}}" for name, value in row.items()))
    print(f"bars: {BAR_MS:g} ms a step, {HELD_BAR_MS:g} ms held; load before {load:.1f}")
    machine = {"cores": os.cpu_count(), "load_before": round(load, 1)}
    store("orchestrator", {"machine": machine, "rows": rows}, quick=quick)


if __name__ == "__main__":
    main()
