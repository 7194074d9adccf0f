"""Steps of the quickstart's model per second by torch threads, alone and beside busy processes.

A step is the forward over one token of each of 48 rollouts. Rollouts have sandboxes beside them, which want
the same processors: ``busy`` are as many processes as there are processors, Python that counts. Threads that
wait for each other spin for milliseconds (libgomp's default); ``passive`` ones sleep. Repetitions alternate.
Run: ``python -m bench.threads [--quick]``; writes ``bench/results/threads.json``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from bench.harness import store

ROLLOUTS = 48
_MEASURED = f"""
import sys, time, torch
from pathlib import Path
from engine.models.attention import Segments
from engine.models.opening import open_model
torch.set_num_threads(int(sys.argv[1]))
model = open_model("builtin:quickstart", home=Path(".")).model
ids = torch.arange({ROLLOUTS})
segments = Segments.whole([1] * {ROLLOUTS}, torch.device("cpu"))
with torch.no_grad():
    for _ in range(3):
        model.packed_hidden(ids, segments)
    begun, steps = time.perf_counter(), 0
    while time.perf_counter() - begun < float(sys.argv[2]):
        model.packed_hidden(ids, segments)
        steps += 1
print(steps / (time.perf_counter() - begun))
"""
MEASURED: Mapping[str, tuple[int, Mapping[str, str]]] = {
    "1 thread": (1, {}),
    "2 threads": (2, {}),
    "2 passive threads": (2, {"OMP_WAIT_POLICY": "PASSIVE"}),
}
"""Threads and variables of the measured process."""


def steps_per_second(threads: int, variables: Mapping[str, str], *, seconds: float) -> float:
    """Return the steps per second of a process."""
    command = [sys.executable, "-c", _MEASURED, str(threads), str(seconds)]
    run = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=True)
    return float(run.stdout)


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep processors busy with processes that count."""
    counting = [sys.executable, "-c", "while True: sum(range(100000))"]
    processes = [subprocess.Popen(counting) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one short repetition")
    quick = parser.parse_args().quick
    seconds, repetitions = (1.0, 1) if quick else (4.0, 3)
    found: dict[str, dict[str, list[float]]] = {}
    for beside in (0, os.cpu_count() or 1):
        rates: dict[str, list[float]] = {name: [] for name in MEASURED}
        with busy(beside):
            for _ in range(repetitions):
                for name, (threads, variables) in MEASURED.items():
                    rates[name].append(steps_per_second(threads, variables, seconds=seconds))
        found[f"beside {beside} busy processes"] = rates
        for name, values in rates.items():
            print(f"beside {beside:2} busy processes, {name:18} {statistics.median(values):7.1f} steps/s")
    store("threads", {"steps_per_second": found}, quick=quick)


if __name__ == "__main__":
    main()
