"""Steps of two models per second by torch threads, alone and beside busy processes.

A step is the forward over one token of each of 48 rollouts: of the quickstart's model, and of one of 30
million parameters. Sandboxes compete with rollouts for the processors: ``busy`` starts one counting Python
process per processor. Threads that wait for each other spin for milliseconds (libgomp's default); ``passive``
ones, as in runs, sleep. Repetitions alternate.
Run: ``python -m bench.threads [--quick]``; writes ``bench/results/threads.json``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from bench.harness import store
from engine.models.builtin.architectures import ARCHITECTURES, TransformerConfig

ROLLOUTS = 48
MODELS: Mapping[str, TransformerConfig] = {
    "quickstart": ARCHITECTURES["quickstart"],
    "30 million": replace(
        ARCHITECTURES["quickstart"],
        hidden_size=512,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=8,
        head_dim=64,
        intermediate_size=1664,
    ),
}
_MEASURED = f"""
import json, sys, time, torch
from engine.models.attention import Segments
from engine.models.builtin.architectures import TransformerConfig
from engine.models.builtin.transformer import Transformer
torch.set_num_threads(int(sys.argv[1]))
model = Transformer(TransformerConfig.from_json(json.loads(sys.argv[3])))
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


def steps_per_second(
    model: TransformerConfig, threads: int, variables: Mapping[str, str], *, seconds: float
) -> float:
    """Return the steps per second of a process."""
    command = [sys.executable, "-c", _MEASURED, str(threads), str(seconds), json.dumps(model.to_json())]
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
    rates_by_case: dict[str, dict[str, list[float]]] = {}
    for beside, (size, model) in itertools.product((0, os.cpu_count() or 1), MODELS.items()):
        rates: dict[str, list[float]] = {name: [] for name in MEASURED}
        with busy(beside):
            for _ in range(repetitions):
                for name, (threads, variables) in MEASURED.items():
                    rates[name].append(steps_per_second(model, threads, variables, seconds=seconds))
        case = f"{size}, beside {beside} busy processes"
        rates_by_case[case] = rates
        for name, values in rates.items():
            print(f"{case:40} {name:18} {statistics.median(values):7.1f} steps/s")
    store("threads", {"steps_per_second": rates_by_case}, quick=quick)


if __name__ == "__main__":
    main()
