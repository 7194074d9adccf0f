"""Steps of a small model per second on two threads, alone and beside busy processes, by how threads wait.

A step is the quickstart model's forward over one token of each of 48 rollouts. ``libgomp`` is what a process
gets that imports torch; ``ours`` what runs set (``engine/processes/openmp.py``), ``passive`` never spins. The
busy processes are one for each processor: Python that counts. Repetitions alternate.
Run: ``python -m bench.spinning [--quick]``; writes ``bench/results/spinning.json``.
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
from engine.processes.openmp import spinning

THREADS, ROLLOUTS = 2, 48
_MEASURED = f"""
import sys, time, torch
from pathlib import Path
from engine.models.attention import Segments
from engine.models.opening import open_model
torch.set_num_threads({THREADS})
model = open_model("builtin:quickstart", home=Path(".")).model
ids = torch.arange({ROLLOUTS})
segments = Segments.whole([1] * {ROLLOUTS}, torch.device("cpu"))
with torch.no_grad():
    for _ in range(3):
        model.packed_hidden(ids, segments)
    begun, steps = time.perf_counter(), 0
    while time.perf_counter() - begun < float(sys.argv[1]):
        model.packed_hidden(ids, segments)
        steps += 1
print(steps / (time.perf_counter() - begun))
"""
WAITING: Mapping[str, Mapping[str, str]] = {
    "libgomp": {},
    "ours": spinning(),
    "passive": {"OMP_WAIT_POLICY": "PASSIVE"},
}
"""Variables of the measured process."""


def steps_per_second(variables: Mapping[str, str], *, seconds: float) -> float:
    """Return the steps per second of a process with these variables."""
    command = [sys.executable, "-c", _MEASURED, str(seconds)]
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
        with busy(beside):
            rates: dict[str, list[float]] = {name: [] for name in WAITING}
            for _ in range(repetitions):
                for name, variables in WAITING.items():
                    rates[name].append(steps_per_second(variables, seconds=seconds))
        found[f"beside {beside} busy processes"] = rates
        for name, values in rates.items():
            print(f"beside {beside:2} busy processes, {name:8} {statistics.median(values):7.1f} steps/s")
    store("spinning", {"threads": THREADS, "steps_per_second": found}, quick=quick)


if __name__ == "__main__":
    main()
