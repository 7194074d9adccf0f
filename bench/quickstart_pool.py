"""Held-out tasks before and after training on the quickstart's pool, by arm and seed.

Each (arm, seed) is a run of the recipe ``quickstart-pool`` in its own folder under the data folder; the pool
is made first if missing. Finished runs are not repeated, interrupted ones continue. Tasks are the
sampling units of the intervals: a paired bootstrap over the held-out tasks, whose solve rates are means over
samples and seeds. Results go to ``bench/results/NAME.*``. Run: ``python -m bench.quickstart_pool [--arms …]
[--seeds …] [--set NAME=VALUE …] [--pool NAME=VALUE …] [--name NAME] [--quick]``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.runs import configured, events_of, finish_run, run_name
from engine.config.base import parse_settings
from engine.config.recipes import quickstart_pool
from engine.datasets.store import dataset_path
from engine.errors import DatasetError
from engine.evaluation.attempts import Attempt, graded_by_task, solve_share
from engine.evaluation.comparison import Comparison, compare
from engine.evaluation.metrics import solve_interval
from engine.types import INFRASTRUCTURE_REASONS, TerminationReason

ARMS: Mapping[str, Mapping[str, Any]] = {
    "keep_zero": {},
    "drop": {"algorithm.filtered_baseline": "drop"},
    "filter_off": {"algorithm.filtered_reasons": []},
    "grpo": {"algorithm": {"preset": "grpo"}},
}
"""Changed settings by arm: the recipe, two other treatments of trajectories that hit a limit, and GRPO."""
QUICK = {
    "trainer.iterations": 2,
    "trainer.tasks_per_iteration": 2,
    "rollout.group_size": 2,
    "evaluation.samples": 8,
    "evaluation.every": 1,
}
QUICK_POOL = {
    "curation.sources": [f"pip:{quickstart_pool.PACKAGES[0]}"],
    "curation.train_tasks": 8,
    "curation.heldout_tasks": 4,
    "curation.output": "quickstart-pool-quick",
}
HELDOUT = "eval:heldout"
HEADER = (
    "arm", "seed", "iterations", "held-out tasks", "pass@1 before", "after", "Δ [95 % over tasks]",
    "gained, lost", "solved and submitted before → after",
)  # fmt: skip
_EDGE = 10
"""Number of first and of last iterations compared."""
BEHAVIOUR: Mapping[str, Callable[[Mapping[str, float]], float]] = {
    "tokens a step": lambda metrics: metrics["tokens/response_mean"] / metrics["steps/mean"],
    "tokens a rollout": lambda metrics: metrics["tokens/response_mean"],
    "steps": lambda metrics: metrics["steps/mean"],
    "submitted": lambda metrics: metrics["termination/submitted"],
    "solve rate": lambda metrics: metrics["solve/rate"],
}
"""Column of the second table → function of an iteration's metrics: training rollouts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Held-out attempts of one run by iteration, and its metrics of training."""

    arm: str
    seed: int
    attempts: dict[int, list[Attempt]]
    metrics: list[dict[str, float]]

    @property
    def first(self) -> list[Attempt]:
        """Return the attempts before training."""
        return self.attempts[min(self.attempts)]

    @property
    def last(self) -> list[Attempt]:
        """Return the attempts of the last evaluation."""
        return self.attempts[max(self.attempts)]


def read_curve(run_dir: Path, *, arm: str, seed: int) -> Curve:
    """Read a run's spool; rollouts and iterations repeated by a later attempt count once."""
    attempts: dict[int, dict[tuple[str, int], Attempt]] = {}
    metrics: dict[int, dict[str, float]] = {}
    for event in events_of(run_dir, "trajectory_finished", "iteration_finished"):
        if event["type"] == "iteration_finished":
            metrics[event["iteration"]] = event["metrics"]
        elif event["ref"]["phase"] == HELDOUT:
            ref = event["ref"]
            attempts.setdefault(ref["iteration"], {})[ref["task_id"], ref["index"]] = _attempt(event)
    return Curve(
        arm=arm,
        seed=seed,
        attempts={number: list(attempts[number].values()) for number in sorted(attempts)},
        metrics=[metrics[number] for number in sorted(metrics)],
    )


def _attempt(event: Mapping[str, Any]) -> Attempt:
    lost = event["termination"] in INFRASTRUCTURE_REASONS or event["reward"] is None
    return Attempt(
        task_id=event["ref"]["task_id"],
        index=event["ref"]["index"],
        solved=None if lost else event["verdict"] == "passed",
        termination=TerminationReason(event["termination"]),
        steps=event["num_steps"],
        generated_tokens=event["generated_tokens"],
    )


def compared(curves: Sequence[Curve]) -> Comparison | None:
    """Compare the first evaluation with the last, all seeds together; None without a common task."""
    try:
        return compare(
            [attempt for curve in curves for attempt in curve.first],
            [attempt for curve in curves for attempt in curve.last],
        )
    except DatasetError:
        return None


def deliberate(attempts: Sequence[Attempt]) -> float | None:
    """Return the share of attempts that were solved and submitted; None where infrastructure lost all."""
    graded = [attempt for attempt in attempts if attempt.solved is not None]
    if not graded:
        return None
    return sum(bool(attempt.solved) and attempt.submitted for attempt in graded) / len(graded)


def table(curves: Sequence[Curve]) -> str:
    """Return the held-out table and the table of training rollouts, in Markdown."""
    lines = [
        f"| {' | '.join(HEADER)} |",
        "|" + "---|" * len(HEADER),
    ]
    arms = dict.fromkeys(curve.arm for curve in curves)
    for arm in arms:
        of_arm = [curve for curve in curves if curve.arm == arm]
        lines += [_row(arm, str(curve.seed), [curve]) for curve in of_arm]
        lines += [_row(arm, "all", of_arm)] if len(of_arm) > 1 else []
    lines += ["", f"| arm, training rollouts, first → last {_EDGE} iterations | {' | '.join(BEHAVIOUR)} |"]
    lines.append("|" + "---|" * (len(BEHAVIOUR) + 1))
    for arm in arms:
        of_arm = [curve for curve in curves if curve.arm == arm and curve.metrics]
        cells = [f"{_mean(of_arm, name, first=True):.3g} → {_mean(of_arm, name):.3g}" for name in BEHAVIOUR]
        lines.append(f"| {' | '.join([arm, *cells])} |")
    return "\n".join(lines)


def _mean(curves: Sequence[Curve], name: str, *, first: bool = False) -> float:
    rows = [row for curve in curves for row in (curve.metrics[:_EDGE] if first else curve.metrics[-_EDGE:])]
    return statistics.fmean(BEHAVIOUR[name](row) for row in rows) if rows else float("nan")


def _row(arm: str, seed: str, curves: Sequence[Curve]) -> str:
    comparison = compared(curves)
    cells = [arm, seed, "/".join(str(max(curve.attempts)) for curve in curves)]
    if comparison is None:
        cells += ["0", *["–"] * 4]
    else:
        low, high = _text(comparison.interval_low, "+.3f"), _text(comparison.interval_high, "+.3f")
        cells += [
            str(comparison.num_shared),
            f"{comparison.rate_first:.3f}",
            f"{comparison.rate_second:.3f}",
            f"{comparison.difference:+.3f} [{low}, {high}]",
            f"{len(comparison.gained)}, {len(comparison.lost)}",
        ]
    before = _mean_known(deliberate(curve.first) for curve in curves)
    after = _mean_known(deliberate(curve.last) for curve in curves)
    cells.append(f"{_text(before, '.3f')} → {_text(after, '.3f')}")
    return f"| {' | '.join(cells)} |"


def _mean_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _text(value: float | None, spec: str) -> str:
    return "–" if value is None else format(value, spec)


def summary(curves: Sequence[Curve]) -> dict[str, Any]:
    """Return the results as JSON."""
    results: dict[str, Any] = {}
    for arm in dict.fromkeys(curve.arm for curve in curves):
        of_arm = [curve for curve in curves if curve.arm == arm]
        pooled = compared(of_arm)
        results[arm] = {
            "difference": pooled and [pooled.difference, pooled.interval_low, pooled.interval_high],
            "heldout_tasks": pooled.num_shared if pooled else 0,
            "seeds": {
                str(curve.seed): {
                    "heldout": {str(number): rates(curve.attempts[number]) for number in curve.attempts},
                    "training": [
                        {name: value(row) for name, value in BEHAVIOUR.items()} for row in curve.metrics
                    ],
                }
                for curve in of_arm
            },
        }
    return results


def rates(attempts: Sequence[Attempt]) -> dict[str, float | None]:
    """Return the rates of one evaluation; they are None where infrastructure lost all of its attempts."""
    graded = [attempt for attempt in attempts if attempt.solved is not None]
    return {
        "samples": len(attempts),
        "pass@1": solve_share(graded) if graded else None,
        "solved and submitted": deliberate(attempts),
        "steps": _mean_known(attempt.steps for attempt in graded),
        "tokens": _mean_known(attempt.generated_tokens for attempt in graded),
    }


def interval(attempts: Sequence[Attempt]) -> tuple[float, float]:
    """Return the 95 % interval of pass@1 for tasks like these."""
    tasks = graded_by_task(attempts).values()
    return solve_interval([solve_share(of_task) for of_task in tasks], sum(len(of_task) for of_task in tasks))


def draw(curves: Sequence[Curve], path: Path) -> None:
    """Draw held-out pass@1, with intervals over tasks, and the submitted training rollouts by iteration."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, (axes, submitting) = pyplot.subplots(1, 2, figsize=(11, 3.6), sharey=True)
    colours = {arm: f"C{number}" for number, arm in enumerate(dict.fromkeys(curve.arm for curve in curves))}
    for curve in curves:
        graded = {number: attempts for number, attempts in curve.attempts.items() if graded_by_task(attempts)}
        heights = [solve_share(a for a in group if a.solved is not None) for group in graded.values()]
        bounds = [interval(attempts) for attempts in graded.values()]
        errors = [
            [height - low for height, (low, _) in zip(heights, bounds, strict=True)],
            [high - height for height, (_, high) in zip(heights, bounds, strict=True)],
        ]
        label = f"{curve.arm}, seed {curve.seed}"
        axes.errorbar(
            list(graded), heights, errors, marker="o", capsize=3, color=colours[curve.arm], label=label
        )
        shares = [BEHAVIOUR["submitted"](metrics) for metrics in curve.metrics]
        submitting.plot(range(len(shares)), shares, color=colours[curve.arm])
    axes.set(xlabel="iterations", ylabel="pass@1 on held-out tasks", ylim=(0, 1))
    submitting.set(xlabel="iterations", ylabel="training rollouts that were submitted")
    axes.grid(alpha=0.3)
    submitting.grid(alpha=0.3)
    axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def make_curve(arm: str, seed: int, overrides: Mapping[str, Any], home: Path) -> Curve:
    """Return the curve of an arm's run, run unless finished. Raises RuntimeError."""
    identity = {"name": f"quickstart-pool {arm}, seed {seed}", "seed": seed}
    config = configured("quickstart-pool", {**overrides, **ARMS[arm], **identity})
    run_dir = finish_run(run_name(f"bench-pool-{arm}-s{seed}", config), config, home)
    return read_curve(run_dir, arm=arm, seed=seed)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a pool of twelve tasks, two small iterations")
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=["keep_zero"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="for every run")
    parser.add_argument("--pool", action="append", default=[], metavar="NAME=VALUE", help="for the dataset")
    parser.add_argument("--name", default="quickstart_pool", help="name of the report's files")
    parser.add_argument("--home", type=Path, default=Path(os.environ.get("TRAINYARD_HOME", ".trainyard")))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the pool and the missing runs, and write the report."""
    options = _parse(arguments)
    home, seeds = options.home.resolve(), [0] if options.quick else options.seeds
    pool = {**(QUICK_POOL if options.quick else {}), **parse_settings(options.pool)}
    dataset = configured("quickstart-pool-dataset", pool)
    output = dataset["curation"]["output"]
    if not dataset_path(home, output).exists():
        finish_run(run_name("bench-pool-dataset", dataset), dataset, home)
    overrides = {**(QUICK if options.quick else {}), "dataset.name": output, **parse_settings(options.set)}
    curves = [make_curve(arm, seed, overrides, home) for seed in seeds for arm in options.arms]
    text = table(curves)
    if not options.quick:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / f"{options.name}.json").write_text(json.dumps(summary(curves), indent=2) + "\n")
        (options.out / f"{options.name}.md").write_text(f"# {options.name}\n\n{text}\n")
        draw(curves, options.out / f"{options.name}.png")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
