"""Readers of pages beside ingest and deletion, and memory of the web process over page views."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, cycle, islice

import httpx
import psutil

from bench.web.fill import post_all
from bench.web.pages import percentile
from bench.web.server import claim_runs, cpu_seconds
from bench.web.stream import RunPlan, batches, events

READERS = 20
READING_S = 3.0
"""Mean time that a reader spends on a page."""
_MIB = 1 << 20


@dataclass
class Readers:
    """Threads that read pages until they are stopped."""

    url: str
    cookie: str
    paths: Sequence[Sequence[str]]
    """Paths by kind of page; readers choose a kind first."""
    milliseconds: list[float] = field(default_factory=list)

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Read pages during the block."""
        over = threading.Event()
        threads = [threading.Thread(target=self._read, args=(number, over)) for number in range(READERS)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join()

    def _read(self, number: int, over: threading.Event) -> None:
        rng = random.Random(number)
        # The server closes connections that were idle for 5 s.
        limits = httpx.Limits(keepalive_expiry=2)
        headers = {"Cookie": self.cookie}
        with httpx.Client(base_url=self.url, headers=headers, timeout=120, limits=limits) as client:
            while not over.wait(rng.expovariate(1 / READING_S)):
                began = time.perf_counter()
                client.get(rng.choice(rng.choice(self.paths))).raise_for_status()
                self.milliseconds.append(1000 * (time.perf_counter() - began))

    def summary(self) -> dict[str, float]:
        """Return number, median and 95th percentile of the pages read."""
        values = self.milliseconds or [0.0]
        return {
            "pages": len(self.milliseconds), "page_p50_ms": round(percentile(values, 0.5), 1),
            "page_p95_ms": round(percentile(values, 0.95), 1), "page_max_ms": round(max(values), 1),
        }  # fmt: skip


def ingest(
    url: str, pids: dict[str, int], readers: Readers, *, clients: int, events_each: int
) -> dict[str, float]:
    """Return steps per second that runs post while people read, and the CPU time of the servers."""
    plan = RunPlan(name="ingest", number=99, iterations=1_000, tasks=1_000, ends=False)
    bodies = list(batches(islice(events(plan), events_each)))
    runs = claim_runs(clients, name="ingest")
    before = {name: cpu_seconds(pid) for name, pid in pids.items()}
    threads = [threading.Thread(target=post_all, args=(url, run, bodies)) for run in runs]
    with readers.reading():
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - began
    posted = clients * events_each
    cpu_s = {f"{name}_cpu_ms_per_1000": round(1e6 * (cpu_seconds(pid) - before[name]) / posted, 1)
             for name, pid in pids.items()}  # fmt: skip
    return {"clients": clients, "steps_per_s": round(posted / seconds), **cpu_s, **readers.summary()}


def beside(url: str, readers: Readers, change: Callable[[], None]) -> dict[str, float]:
    """Return the seconds of a change, and latencies of pages and of a run's batches meanwhile."""
    plan = RunPlan(name="beside", number=98, iterations=1_000, tasks=1_000, ends=False)
    lines = events(plan)
    run = claim_runs(1, name="beside")[0]
    over = threading.Event()
    latencies: list[float] = []

    def post() -> None:
        for body in batches(lines, 100):
            began = time.perf_counter()
            post_all(url, run, [body])
            latencies.append(1000 * (time.perf_counter() - began))
            if over.wait(0.05):
                return

    poster = threading.Thread(target=post)
    poster.start()
    with readers.reading():
        began = time.perf_counter()
        try:
            change()
        finally:
            seconds = time.perf_counter() - began
            over.set()
            poster.join()
    return {
        "seconds": round(seconds, 2), "batches": len(latencies),
        "batch_p95_ms": round(percentile(latencies, 0.95), 1), "batch_max_ms": round(max(latencies), 1),
        **readers.summary(),
    }  # fmt: skip


def memory(url: str, cookie: str, pid: int, paths: Sequence[str], views: int) -> list[tuple[int, float]]:
    """Return the resident memory of the web process, MiB, after numbers of page views."""
    process = psutil.Process(pid)
    sizes = []
    with httpx.Client(base_url=url, headers={"Cookie": cookie}, timeout=120) as client:
        for number, path in zip(count(1), islice(cycle(paths), views), strict=False):
            client.get(path).raise_for_status()
            if number % (views // 10) == 0:
                sizes.append((number, round(process.memory_info().rss / _MIB, 1)))
    return sizes
