"""Ablation of GRPO++ on FrozenLake over seeds: GRPO, GRPO++ and each single ingredient.

Each (arm, seed) is an ordinary run of the recipe ``frozenlake`` in its own folder under the data folder:
finished runs are not repeated, interrupted ones continue from their last checkpoint. Arms share the maps, and
for the same seed also warm start, task order and random streams. Results go to ``bench/results/NAME.*``, with
every arm's differences from a reference arm, paired by seed. Run: ``python -m bench.frozenlake [--quick]
[--arms …] [--seeds …] [--iterations N] [--reference ARM] [--name NAME] [--workers N]``.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.frozenlake_report import REFERENCE, Curve, read_curve, write_report
from bench.runs import configured, finish_run, is_finished, run_name

ARMS: Mapping[str, Mapping[str, Any]] = {
    "grpo_pp": {"preset": "grpo_pp"},
    "grpo": {"preset": "grpo"},
    "group_mean_baseline": {"preset": "grpo_pp", "baseline": "group_mean"},
    "std_normalisation": {"preset": "grpo_pp", "std_normalisation": "group"},
    "sequence_mean": {"preset": "grpo_pp", "aggregation": "sequence_mean"},
    "clip_high_0.2": {"preset": "grpo_pp", "clip_high": 0.2},
    "kl": {"preset": "grpo_pp", "kl": "k3", "kl_placement": "loss", "kl_coefficient": 0.04},
    "filter_off": {"preset": "grpo_pp", "filtered_reasons": []},
    "filter_keep_zero": {"preset": "grpo_pp", "filtered_baseline": "keep_zero"},
}
"""Settings of ``algorithm`` by arm: GRPO++, GRPO, and GRPO++ with one ingredient changed."""

QUICK_ARMS, QUICK_ITERATIONS = ("grpo_pp", "filter_off"), 6
QUICK = {
    "environment.size": 2,
    "environment.min_path": 1,
    "environment.max_path": 2,
    "environment.train_maps": 16,
    "environment.heldout_maps": 8,
    "environment.warm_start_steps": 40,
    "environment.warm_start_trajectories": 8,
    "trainer.tasks_per_iteration": 8,
    "evaluation.samples": 64,
    "evaluation.every": 2,
}
"""Settings of a smoke test."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Specification of one curve: arm and seed."""

    arm: str
    seed: int
    overrides: Mapping[str, Any]

    def config(self) -> dict[str, Any]:
        """Return the resolved configuration as JSON."""
        settings = {f"algorithm.{name}": value for name, value in ARMS[self.arm].items()}
        identity = {"name": f"frozenlake {self.arm}, seed {self.seed}", "seed": self.seed}
        overrides = {**self.overrides, **settings, **identity, "environment.warm_start_seed": self.seed}
        return configured("frozenlake", overrides)

    @property
    def run_id(self) -> str:
        """Return the name of the run folder, which depends on the settings."""
        return run_name(f"bench-frozenlake-{self.arm}-s{self.seed}", self.config())


def make_curve(plan: Plan, home: Path) -> Curve:
    """Run one curve unless it is finished; on one thread, as configured.

    Raises:
        RuntimeError: the run failed; the message has the reason.
    """
    began, was_finished = time.monotonic(), is_finished(home / "runs" / plan.run_id)
    run_dir = finish_run(plan.run_id, plan.config(), home)
    if not was_finished:
        print(f"{plan.arm} seed {plan.seed}: {time.monotonic() - began:.0f} s", flush=True)
    return read_curve(run_dir, arm=plan.arm, seed=plan.seed)


def make_curves(plans: Sequence[Plan], home: Path, workers: int) -> list[Curve]:
    """Run all curves with a number of workers; failed ones are reported and excluded."""
    with ThreadPoolExecutor(workers) as pool:
        jobs = [pool.submit(make_curve, plan, home) for plan in plans]
    curves = []
    for job in jobs:
        error = job.exception()
        if error is None:
            curves.append(job.result())
        else:
            print(f"FAILED: {error}", file=sys.stderr)
    return curves


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two arms, one seed, few small iterations")
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), metavar="ARM", help=", ".join(ARMS))
    parser.add_argument("--seeds", nargs="+", type=int)
    parser.add_argument("--iterations", type=int, help="iterations of every run (default: the recipe's)")
    parser.add_argument("--reference", choices=list(ARMS), default=REFERENCE, help="arm to compare with")
    parser.add_argument("--name", default="frozenlake", help="name of the report's files")
    parser.add_argument("--workers", type=int, default=1, help="runs at once, one thread each")
    parser.add_argument("--home", type=Path, default=Path(os.environ.get("TRAINYARD_HOME", ".trainyard")))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the missing curves and write the report; return 1 if a run failed."""
    options = _parse(arguments)
    overrides: dict[str, Any] = dict(QUICK) if options.quick else {}
    iterations = options.iterations or (QUICK_ITERATIONS if options.quick else None)
    if iterations:
        overrides["trainer.iterations"] = iterations
    arms = options.arms or (QUICK_ARMS if options.quick else tuple(ARMS))
    seeds = options.seeds or ([0] if options.quick else [0, 1, 2])
    plans = [Plan(arm, seed, overrides) for seed in seeds for arm in arms]
    curves = make_curves(plans, options.home.resolve(), options.workers)
    if curves:
        name = f"{options.name}_quick" if options.quick else options.name
        print(write_report(curves, options.out, name=name, reference=options.reference))
    return 0 if len(curves) == len(plans) else 1


if __name__ == "__main__":
    sys.exit(main())
