"""Test-time scaling on the quickstart's held-out tasks: Best@K of every selector for K = 1 … 16.

    policy ─┬▶ held-out rollouts ──────────────────────────┬▶ scores ──────────┐
            └▶ training rollouts ─▶ judge ─────────────────┘                   ├▶ Best@K
    lessons ─▶ testing agent ─▶ written tests ─▶ scores by tests ──────────────┘

Every part is a run of one of the product's recipes in its own folder under the data folder: finished runs are
not repeated, interrupted ones continue. Tasks, policy, training rollouts, testing agent and written tests are
made once; a seed has its own held-out rollouts and its own judge. Results go to ``bench/results/NAME.*``.
Run: ``python -m bench.test_time_scaling [--seeds …] [--set SIZE=VALUE …] [--workers N]
[--home FOLDER] [--name NAME] [--quick]``.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

from bench.scaling.outcomes import read_outcome, run_summary
from bench.scaling.parts import QUICK, Parts, Scale
from bench.scaling.report import write_report
from engine.config.base import parse_settings


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two held-out tasks of one package, one seed")
    parser.add_argument("--seeds", nargs="+", type=int)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="one of the sizes")
    parser.add_argument("--workers", type=int, default=1, help="runs at once, one thread each")
    parser.add_argument("--name", default="test_time_scaling", help="name of the report's files")
    parser.add_argument("--home", type=Path, default=Path(os.environ.get("TRAINYARD_HOME", ".trainyard")))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the missing parts and write the report."""
    options = _parse(arguments)
    sizes = replace(QUICK if options.quick else Scale(), **parse_settings(options.set))
    parts = Parts(options.home.resolve(), sizes)
    seeds = options.seeds or ([0] if options.quick else [0, 1, 2])
    _ = parts.dataset
    with ThreadPoolExecutor(options.workers) as pool:
        written = pool.submit(lambda: parts.written_tests)
        _ = parts.policy
        training = pool.submit(lambda: parts.train_rollouts)
        rolled = [pool.submit(parts.rollouts, seed) for seed in seeds]
        runs = {"policy": parts.policy}
        training.result()
        judging = [pool.submit(parts.judge, seed) for seed in seeds]
        rollouts = [job.result() for job in rolled]
        runs |= {"written tests": written.result(), "testing agent": parts.testing_agent}
        testing = pool.submit(parts.by_tests, rollouts)
        judges = [job.result() for job in judging]
        scores = list(pool.map(parts.scores, seeds, judges, rollouts))
    runs["scores by tests"] = testing.result()
    outcomes = []
    for seed, run, judge, judged in zip(seeds, rollouts, judges, scores, strict=True):
        outcomes.append(
            read_outcome(parts.home, seed=seed, rollouts=run, judged=judged, tested=testing.result())
        )
        runs |= {f"held-out rollouts, seed {seed}": run, f"judge, seed {seed}": judge}
    facts = {
        "sizes": asdict(parts.scale),
        "runs": {part: run_summary(parts.folder(name)) for part, name in runs.items()},
    }
    name = f"{options.name}_quick" if options.quick else options.name
    print(write_report(outcomes, options.out, name=name, facts=facts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
