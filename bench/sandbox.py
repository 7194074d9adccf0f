"""Latency of starting, using and closing local sandboxes, and their memory.

Each command is ``/bin/sh -c true``. Bars apply to one sandbox on an idle two-core machine, and to 64
concurrent ones; the load at the start of the measurement is part of the result. ``start`` is cold;
``start, warm`` uses sandboxes that the default settings start ahead of demand: single ones, and eight of each
of eight images at once. Run: ``python -m bench.sandbox [--quick] [--as-if-idle]``; results go to
``bench/results/sandbox.json``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import platform
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from bench.harness import store
from engine.config.sandbox import SandboxConfig
from engine.sandbox.base import Counting, Sandbox, SandboxBackend, SandboxSpec
from engine.sandbox.local.backend import LocalBackend
from engine.sandbox.local.images import build_image
from engine.sandbox.warm import WarmSettings

Row = dict[str, float | int | str | None]
SPEC = SandboxSpec(image="local:bench", run_id="bench")
WARM_IMAGES = 8


class WarmBackend(SandboxBackend, Counting, Protocol):
    """A backend that reports its number of warm sandboxes."""


def row(
    what: str, parallel: int, seconds: Sequence[float], bars: tuple[float, float | None] | None = None
) -> Row:
    """Return a row of percentiles in milliseconds with their bars."""
    ordered = sorted(seconds)
    at = [ordered[min(len(ordered) - 1, int(len(ordered) * part))] * 1000 for part in (0.5, 0.99)]
    return {
        "what": what,
        "parallel": parallel,
        "samples": len(ordered),
        "p50": round(at[0], 2),
        "p99": round(at[1], 2),
        "bar_p50": bars[0] if bars else None,
        "bar_p99": bars[1] if bars else None,
    }


@contextlib.asynccontextmanager
async def sandboxes(
    backend: SandboxBackend, count: int, images: Sequence[str] = (SPEC.image,)
) -> AsyncIterator[list[tuple[Sandbox, float]]]:
    """Open a number of sandboxes of each image concurrently; return each with its start time in seconds."""

    async def start(spec: SandboxSpec) -> tuple[Sandbox, float]:
        started = time.perf_counter()
        sandbox = await stack.enter_async_context(backend.open(spec))
        return sandbox, time.perf_counter() - started

    specs = [replace(SPEC, image=image) for image in images for _ in range(count)]
    async with contextlib.AsyncExitStack() as stack:
        yield await asyncio.gather(*(start(spec) for spec in specs))


async def seconds_of(sandbox: Sandbox, commands: int) -> list[float]:
    """Return round-trip times of sequential trivial commands."""
    times = []
    for _ in range(commands):
        started = time.perf_counter()
        result = await sandbox.exec("true", timeout_s=60)
        times.append(time.perf_counter() - started)
        assert result.exit_code == 0
    return times


async def lifecycle(
    backend: SandboxBackend, count: int, bars: tuple[float, float | None] | None = None
) -> list[Row]:
    """Measure sequential starts and closes; ``bars`` apply to the starts."""
    starts, closes = [], []
    for _ in range(count):
        started = time.perf_counter()
        async with backend.open(SPEC):
            starts.append(time.perf_counter() - started)
            ended = time.perf_counter()
        closes.append(time.perf_counter() - ended)
    return [row("start", 1, starts, bars), row("close", 1, closes)]


def build_images(home: Path, count: int) -> list[str]:
    """Build images of one file each; return their names."""
    (home / "tree").mkdir()
    (home / "tree" / "file").write_text("content\n")
    names = ["bench", *(f"bench-{number}" for number in range(1, count))]
    for name in names:
        build_image(home, name, home / "tree")
    return [f"local:{name}" for name in names]


async def warm_starts(
    backend: WarmBackend, images: Sequence[str], bars: dict[int, tuple[float, float | None]], *, quick: bool
) -> list[Row]:
    """Measure starts from warm sandboxes: single ones, and several of every image at once."""

    async def ready(count: int) -> None:
        while backend.population().idle < count:  # noqa: ASYNC110  # a backend has a count, but no event
            await asyncio.sleep(0.005)

    single: list[float] = []
    for _ in range(15 if quick else 60):
        await backend.prepare({images[0]: 1})
        await ready(1)
        async with sandboxes(backend, 1, images[:1]) as ((box, seconds),):
            assert box.startup.warm
            single.append(seconds)
    rows = [row("start, warm", 1, single, bars.get(1))]
    each = 1 if quick else 8
    crowds: list[float] = []
    for _ in range(3):
        await backend.prepare(dict.fromkeys(images, each))
        await ready(each * len(images))
        async with sandboxes(backend, each, images) as boxes:
            assert all(box.startup.warm for box, _ in boxes)
            crowds += [seconds for _, seconds in boxes]
    parallel = each * len(images)
    return [*rows, row("start, warm", parallel, crowds, bars.get(parallel))]


async def crowd(backend: LocalBackend, count: int, commands: int) -> list[Row]:
    """Measure start, commands and close with ``count`` concurrent sandboxes."""
    bars = {1: (2.5, 15.0), 64: (50.0, 250.0)}
    async with sandboxes(backend, count) as boxes:
        times = await asyncio.gather(*(seconds_of(box, commands) for box, _ in boxes))
        started = time.perf_counter()
        await asyncio.gather(*(box.close() for box, _ in boxes))
        closing = time.perf_counter() - started
    rows = [row("exec", count, [value for of_box in times for value in of_box], bars.get(count))]
    if count > 1:
        up = (200.0, None) if count == 64 else None
        rows.insert(0, row("start", count, [seconds for _, seconds in boxes], up))
        rows.append(row("close all", count, [closing]))
    return rows


async def memory_mb(backend: LocalBackend, count: int) -> float:
    """Return the mean proportional set size of a sandbox's own processes over ``count`` sandboxes, MiB."""

    def pss(pid: int) -> int:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))

    async with sandboxes(backend, count) as boxes:
        ids = {box.id for box, _ in boxes}
        outer = [entry.pid for entry in backend.ledger.entries() if entry.id in ids]
        inner = [
            int(part)
            for pid in outer
            for part in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ]
        return sum(pss(pid) for pid in (*outer, *inner)) / 1024 / count


def pretend_idle(backend: LocalBackend) -> None:
    """Pre-empt all other processes during the measurement (root only; real-time excludes CPU groups)."""
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(5))
    if backend.groups is not None:
        backend.groups.parents.pop("cpu", None)


async def measure(*, quick: bool, as_if_idle: bool) -> dict[str, object]:
    """Run all measurements on a temporary image."""
    machine = {"cores": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version()}
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        images = build_images(home, WARM_IMAGES)
        backend = LocalBackend(home)
        if as_if_idle:
            pretend_idle(backend)
        async with backend.open(SPEC):
            pass  # creates the spawner and the base files
        load = os.getloadavg()[0]
        rows = await lifecycle(backend, 15 if quick else 60, (15, 120))
        for count in (1, 8) if quick else (1, 8, 32, 64):
            rows += await crowd(backend, count, 100 if count == 1 else 20)
        weight = await memory_mb(backend, 4 if quick else 16)
        config = SandboxConfig()
        warm = LocalBackend(home, warm=WarmSettings.of(config, config.local, SPEC.run_id))
        if as_if_idle and warm.groups is not None:
            warm.groups.parents.pop("cpu", None)
        rows += await warm_starts(warm, images, {1: (15, 120), 64: (200, None)}, quick=quick)
        await warm.close()
    backend_row = {
        "as_if_idle": as_if_idle,
        "cgroups": backend.groups is not None,
        "overlay": not backend.copies,
    }
    return {"machine": {**machine, "load": load, **backend_row}, "memory_mb": round(weight, 1), "ms": rows}


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer samples, 8 sandboxes at most")
    parser.add_argument("--as-if-idle", action="store_true", help="use real-time priority on a busy machine")
    options = parser.parse_args()
    results = asyncio.run(measure(quick=options.quick, as_if_idle=options.as_if_idle))
    columns = ("what", "parallel", "samples", "p50", "p99", "bar_p50", "bar_p99")
    print("".join(f"{name:>12}" for name in columns) + "   (milliseconds)")
    rows = results["ms"]
    assert isinstance(rows, list)
    for row in rows:
        print("".join(f"{'' if row[name] is None else row[name]:>12}" for name in columns))
    print(f"memory of one sandbox: {results['memory_mb']} MiB (bar 8)   machine: {results['machine']}")
    store("sandbox", results, quick=options.quick)


if __name__ == "__main__":
    main()
