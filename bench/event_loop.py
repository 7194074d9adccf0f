"""Event loop latency of an engine during training, which delays heartbeats, leases and watches.

A run of the recipe ``quickstart`` in a separate process, measured by its own probe (``loop/held_*_ms``). An
idle event loop in this process is measured at the same time: its delays are caused by the machine's load. The
quickstart dataset is built if the data folder has none, which takes minutes. Run: ``python -m
bench.event_loop [--quick] [--home FOLDER]``; writes ``bench/results/event_loop.json``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.harness import store
from engine.config.recipes.quickstart import DATASET
from engine.datasets.store import dataset_path
from engine.orchestrator.loop_probe import LoopProbe
from engine.run import LOG_NAME

BAR_MS = 50.0
"""Bar for the 99.9th percentile, milliseconds."""
ITERATIONS, QUICK_ITERATIONS = 6, 2


async def run_engine(home: Path, recipe: str, settings: Mapping[str, int] | None = None) -> Path:
    """Run a recipe in a separate process and return the run's folder."""
    options = [part for name, value in (settings or {}).items() for part in ("--set", f"{name}={value}")]
    command = [sys.executable, "-m", "engine.run", "--recipe", recipe, "--home", str(home), *options]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}: {output.decode()[-2000:]}")
    return Path(output.decode().splitlines()[0].removeprefix("run folder "))


async def measure(home: Path, iterations: int) -> dict[str, Any]:
    """Measure a training run, and an idle event loop at the same time."""
    if not dataset_path(home, DATASET).exists():
        await run_engine(home, f"{DATASET}-dataset")
    before = os.getloadavg()[0]
    settings = {"trainer.iterations": iterations, "evaluation.samples": 32, "evaluation.train_samples": 32}
    async with LoopProbe() as idle:
        run_dir = await run_engine(home, "quickstart", settings)
    log = [json.loads(line) for line in (run_dir / LOG_NAME).read_text().splitlines() if line[:1] == "{"]
    events = [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()]
    return {
        "machine": {
            "cores": os.cpu_count(),
            "load_before": round(before, 1),
            "load_after": round(os.getloadavg()[0], 1),
        },
        "bar_p999_ms": BAR_MS,
        "whole_run": held(next(line for line in log if line["event"] == "event_loop")),
        "idle_loop": held(idle.whole.metrics()),
        "iterations": [
            {**held(event["metrics"]), "update_s": round(event["metrics"]["time/update"], 2)}
            for event in events
            if event["type"] == "iteration_finished"
        ],
        "warnings": [line for line in log if line["event"] == "event_loop_held"],
    }


def held(metrics: dict[str, float]) -> dict[str, float]:
    """Return p50, p99, p999 and maximum in milliseconds."""
    return {name: round(metrics[f"loop/held_{name}_ms"], 2) for name in ("p50", "p99", "p999", "max")}


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ITERATIONS} iterations")
    parser.add_argument("--home", type=Path, default=Path(os.environ.get("TRAINYARD_HOME", ".trainyard")))
    options = parser.parse_args()
    iterations = QUICK_ITERATIONS if options.quick else ITERATIONS
    results = asyncio.run(measure(options.home.resolve(), iterations))
    rows = {"whole run": results["whole_run"], "a loop that does nothing": results["idle_loop"]}
    rows |= {f"iteration {index + 1}": row for index, row in enumerate(results["iterations"])}
    print(f"{'held, ms':<26}{'p50':>9}{'p99':>9}{'p99.9':>9}{'max':>9}   bar {BAR_MS:.0f} (p99.9)")
    for name, row in rows.items():
        print(f"{name:<26}" + "".join(f"{row[key]:>9.1f}" for key in ("p50", "p99", "p999", "max")))
    print(f"machine: {results['machine']}")
    store("event_loop", results, quick=options.quick)


if __name__ == "__main__":
    main()
