"""Iterations per hour of ``sync``, ``one_step_off`` and ``async``: the quickstart with two real vLLM servers.

The same recipe, one run for each seed and schedule, one after the other on this machine; servers, trainer
and sandboxes share its processors, unlike those of ``bench.schedule``. An iteration is measured from the end
of the previous one; the first is excluded. Finished runs are not repeated. Needs ``make vllm``. Run:
``python -m bench.schedule_engines [--seeds N …] [--iterations N] [--set NAME=VALUE …] [--home DIR]
[--quick]``; writes ``bench/results/schedule_engines.json``.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.harness import store
from bench.runs import configured, events_of, finish_run, run_name
from bench.schedule import MODES
from engine.config.base import parse_settings
from engine.datasets.store import dataset_path

REPLICAS = 2
ENGINES: Mapping[str, Any] = {
    "policy.engine": "vllm",
    "policy.vllm.replicas": REPLICAS,
    "evaluation.samples": 8,
    "evaluation.train_samples": 0,
}
MEANS = ("staleness/mean", "staleness/max", "solve/rate")


def measured(run_dirs: Sequence[Path]) -> dict[str, float]:
    """Return the measurements over the iterations of runs, excluding the first of each."""
    periods: list[float] = []
    metrics: list[dict[str, float]] = []
    for run_dir in run_dirs:
        ends = {event["iteration"]: event for event in events_of(run_dir, "iteration_finished")}
        events = [ends[number] for number in sorted(ends)]
        periods += [later["time"] - earlier["time"] for earlier, later in pairwise(events)]
        metrics += [event["metrics"] for event in events[1:]]

    def share(name: str) -> float:
        return float(sum(iteration.get(name, 0.0) for iteration in metrics) / sum(periods))

    return {
        "iterations": len(periods),
        "iterations_per_hour": len(periods) / sum(periods) * 3600,
        "seconds_median": statistics.median(periods),
        "engines_busy": share("time/engine_busy"),
        "trainer_busy": share("time/update"),
        **{name: statistics.fmean(iteration.get(name, 0.0) for iteration in metrics) for name in MEANS},
    }


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Iterations per hour with two real vLLM servers")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="for every run")
    parser.add_argument("--home", type=Path, default=Path(os.environ.get("TRAINYARD_HOME", ".trainyard")))
    parser.add_argument("--quick", action="store_true", help="two iterations of two tasks")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the schedules one after the other and print a line for each."""
    options = parse(arguments)
    home = options.home.absolute()
    settings = {**ENGINES, "trainer.iterations": options.iterations}
    if options.quick:
        settings |= {"trainer.iterations": 2, "trainer.tasks_per_iteration": 2, "rollout.group_size": 2}
    settings |= parse_settings(options.set)
    dataset = configured("quickstart-dataset", {})
    if not dataset_path(home, dataset["curation"]["output"]).exists():
        finish_run(run_name("bench-quickstart-dataset", dataset), dataset, home)
    results: dict[str, dict[str, float]] = {}
    for mode in MODES:
        run_dirs = []
        for seed in options.seeds:
            config = configured("quickstart", {**settings, "schedule.mode": mode, "seed": seed})
            run_dirs.append(finish_run(run_name(f"bench-engines-{mode}", config), config, home))
        results[mode] = measured(run_dirs)
        ratio = results[mode]["iterations_per_hour"] / results["sync"]["iterations_per_hour"]
        results[mode]["ratio"] = ratio
        print(mode, *(f"{name} {value:.3g}" for name, value in results[mode].items()), sep="  ", flush=True)
    store("schedule_engines", results, quick=options.quick)


if __name__ == "__main__":
    main()
