"""Report of finished FrozenLake runs: a table, curves as CSV, JSON and a figure.

Seeds are the sampling units: an arm's interval is a percentile bootstrap over its seeds' values, that of a
difference over the seeds shared by both arms. With few seeds such intervals are too narrow; the p-values of
differences are exact for any number.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import operator
import platform
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.runs import events_of

REFERENCE = "grpo_pp"
"""Reference arm of the comparisons by default."""
LEVEL = 0.5
"""Success level whose first crossing is reported."""
_LAST = 3
"""Number of last evaluations averaged for the final success."""
_EDGE = 10
"""Number of first and of last iterations compared for the length growth."""
_RESAMPLES = 2000

Interval = tuple[float, float, float]
"""Mean, low, high; NaN without data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Results of one run."""

    arm: str
    seed: int
    evaluations: list[dict[str, Any]]
    """Held-out evaluations, in order: iteration, solve_rate, interval_low, interval_high, pass_at_k."""
    iterations: list[dict[str, float]]
    """Metrics by iteration."""
    seconds: float

    @property
    def iterations_to_level(self) -> float:
        """Return the interpolated iterations until ``LEVEL`` is crossed; infinite if it never is."""
        before: dict[str, Any] | None = None
        for entry in self.evaluations:
            if entry["solve_rate"] >= LEVEL:
                if before is None:
                    return float(entry["iteration"])
                share = (LEVEL - before["solve_rate"]) / (entry["solve_rate"] - before["solve_rate"])
                return float(before["iteration"] + share * (entry["iteration"] - before["iteration"]))
            before = entry
        return math.inf

    @property
    def final_success(self) -> float:
        """Return the mean pass@1 of the last evaluations."""
        return statistics.fmean(entry["solve_rate"] for entry in self.evaluations[-_LAST:])

    @property
    def area(self) -> float:
        """Return the area under pass@1 over iterations, normalised to a mean height."""
        points = [(entry["iteration"], entry["solve_rate"]) for entry in self.evaluations]
        span = points[-1][0] - points[0][0]
        if not span:
            return float(points[0][1])
        pieces = itertools.pairwise(points)
        return float(sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in pieces) / span)

    @property
    def gradient_spread(self) -> float:
        """Return the coefficient of variation of the gradient norm, independent of the loss scale."""
        norms = [entry["grad/norm"] for entry in self.iterations if "grad/norm" in entry]
        mean = statistics.fmean(norms) if norms else 0.0
        return statistics.pstdev(norms) / mean if mean else math.nan

    @property
    def length_growth(self) -> float:
        """Return the ratio of sampled tokens per turn at the end to those at the beginning."""
        lengths = [
            entry["tokens/response_mean"] / entry["steps/mean"]
            for entry in self.iterations
            if entry["steps/mean"]
        ]
        if not lengths:
            return math.nan
        return statistics.fmean(lengths[-_EDGE:]) / statistics.fmean(lengths[:_EDGE])

    @property
    def seconds_per_iteration(self) -> float:
        """Return the seconds per iteration for collection and update, without evaluations."""
        return statistics.fmean(entry["time/iteration"] for entry in self.iterations)


COLUMNS: dict[str, Callable[[Curve], float]] = {
    f"iterations to {LEVEL:.0%}": lambda curve: curve.iterations_to_level,
    "final success": lambda curve: curve.final_success,
    "area under curve": lambda curve: curve.area,
    "gradient-norm spread": lambda curve: curve.gradient_spread,
    "length growth": lambda curve: curve.length_growth,
    "s / iteration": lambda curve: curve.seconds_per_iteration,
}
"""Column of the table → function that computes its value for a run."""
COMPARED = ("area under curve", "final success")
"""Columns whose differences are reported."""


def read_curve(run_dir: Path, *, arm: str, seed: int) -> Curve:
    """Read a finished run's spool; iterations repeated by a later attempt count once."""
    evaluations: dict[int, dict[str, Any]] = {}
    iterations: dict[int, dict[str, float]] = {}
    seconds = 0.0
    for event in events_of(run_dir, "iteration_finished", "evaluation_finished", "run_finished"):
        match event["type"]:
            case "iteration_finished":
                iterations[event["iteration"]] = event["metrics"]
            case "evaluation_finished" if event["name"] == "heldout":
                evaluations[event["iteration"]] = event
            case "run_finished":
                seconds = float(event["summary"].get("seconds") or 0.0)
    return Curve(
        arm=arm,
        seed=seed,
        evaluations=[evaluations[number] for number in sorted(evaluations)],
        iterations=[iterations[number] for number in sorted(iterations)],
        seconds=seconds,
    )


def bootstrap(values: Sequence[float], *, seed: int = 0) -> Interval:
    """Return the mean with a 95 % bootstrap percentile interval; NaN for infinite or missing values."""
    if not values or not all(map(math.isfinite, values)):
        return math.nan, math.nan, math.nan
    rng = random.Random(seed)
    means = sorted(statistics.fmean(rng.choices(values, k=len(values))) for _ in range(_RESAMPLES))
    return statistics.fmean(values), means[int(0.025 * _RESAMPLES)], means[int(0.975 * _RESAMPLES) - 1]


def sign_flip_p(differences: Sequence[float]) -> float:
    """Return the exact two-sided p-value of a mean of paired differences.

    Without an effect each difference is positive or negative with equal probability: the p-value is the share
    of all sign assignments with a mean at least as far from 0. 16 pairs at most.
    """
    total = abs(math.fsum(differences))
    signs = itertools.product((1, -1), repeat=len(differences))
    sums = [abs(math.fsum(map(operator.mul, differences, sign))) for sign in signs]
    return sum(value >= total - 1e-12 for value in sums) / len(sums)


def write_report(curves: Sequence[Curve], folder: Path, *, name: str, reference: str = REFERENCE) -> str:
    """Write ``NAME.json``, ``.csv``, ``.md`` and ``.png``; return the tables.

    Args:
        curves: the runs.
        folder: output folder.
        name: name of the files, without their endings.
        reference: the arm that the others are compared with.
    """
    folder.mkdir(parents=True, exist_ok=True)
    arms = _by_arm(curves)
    table = f"{_table(arms)}\n\n{_paired_table(arms, reference)}"
    (folder / f"{name}.json").write_text(json.dumps(_summary(arms, reference), indent=2) + "\n")
    (folder / f"{name}.csv").write_text(_csv(curves))
    (folder / f"{name}.md").write_text(f"# FrozenLake\n\n{_READING}\n\n{table}\n")
    _draw(arms, folder / f"{name}.png", reference)
    return table


_READING = (
    "Mean over seeds [95 % bootstrap interval over seeds]. Success is pass@1 on held-out maps, "
    f"final success the mean of the last {_LAST} evaluations, the area a mean height of the curve. "
    "Gradient-norm spread is standard deviation over mean; length growth compares sampled tokens per turn at "
    "the end and at the beginning. '–' means that not every seed has a value, e.g. never reached the level. "
    "The second table holds each arm's differences from the reference arm at the same seeds, with the exact "
    "two-sided p-value of their mean under random signs."
)


def _by_arm(curves: Sequence[Curve]) -> dict[str, list[Curve]]:
    arms: dict[str, list[Curve]] = {}
    for curve in curves:
        arms.setdefault(curve.arm, []).append(curve)
    return arms


def paired(arms: Mapping[str, Sequence[Curve]], arm: str, reference: str, column: str) -> list[float]:
    """Return an arm's differences from the reference arm in a column, by shared seed."""
    value = COLUMNS[column]
    by_seed = {curve.seed: value(curve) for curve in arms.get(reference, [])}
    return [value(curve) - by_seed[curve.seed] for curve in arms[arm] if curve.seed in by_seed]


def _table(arms: dict[str, list[Curve]]) -> str:
    header = ["arm", "seeds", *COLUMNS]
    lines = [f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    for arm, curves in arms.items():
        cells = [_cell(bootstrap([column(curve) for curve in curves])) for column in COLUMNS.values()]
        lines.append(f"| {' | '.join([arm, str(len(curves)), *cells])} |")
    return "\n".join(lines)


def _paired_table(arms: dict[str, list[Curve]], reference: str) -> str:
    header = [f"arm − {reference}", "pairs", *(f"Δ {column}" for column in COMPARED)]
    lines = [f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    for arm in arms:
        differences = [paired(arms, arm, reference, column) for column in COMPARED]
        if arm != reference and differences[0]:
            cells = [f"{_cell(bootstrap(column))}, p = {sign_flip_p(column):.3f}" for column in differences]
            lines.append(f"| {' | '.join([arm, str(len(differences[0])), *cells])} |")
    return "\n".join(lines)


def _cell(interval: Interval) -> str:
    mean, low, high = interval
    return "–" if math.isnan(mean) else f"{mean:.3g} [{low:.3g}, {high:.3g}]"


def _summary(arms: dict[str, list[Curve]], reference: str) -> dict[str, Any]:
    def plain(interval: Interval) -> list[float] | None:
        return None if math.isnan(interval[0]) else [round(value, 5) for value in interval]

    return {
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "python": platform.python_version(),
        },
        "level": LEVEL,
        "reference": reference,
        "arms": {
            arm: {
                "seeds": [curve.seed for curve in curves],
                "seconds": [curve.seconds for curve in curves],
                **{
                    name: plain(bootstrap([column(curve) for curve in curves]))
                    for name, column in COLUMNS.items()
                },
                "differences": {column: paired(arms, arm, reference, column) for column in COMPARED},
                "area_difference": plain(bootstrap(paired(arms, arm, reference, "area under curve"))),
            }
            for arm, curves in arms.items()
        },
    }


def _csv(curves: Sequence[Curve]) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["arm", "seed", "iteration", "pass@1", "low", "high", "largest k", "pass@k"])
    for curve in curves:
        for entry in curve.evaluations:
            most = (entry.get("pass_at_k") or [{"k": 1, "rate": entry["solve_rate"]}])[-1]
            numbers = [entry["solve_rate"], entry["interval_low"], entry["interval_high"]]
            shown = [f"{number:.4f}" for number in numbers]
            writer.writerow(
                [curve.arm, curve.seed, entry["iteration"], *shown, most["k"], f"{most['rate']:.4f}"]
            )
    return stream.getvalue()


def _draw(arms: dict[str, list[Curve]], path: Path, reference: str) -> None:
    """Draw one panel per arm, with the reference arm in grey; bands are bootstrap intervals over seeds."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    shown = [arm for arm in arms if arm != reference] or list(arms)
    columns = min(4, len(shown))
    rows = -(-len(shown) // columns)
    figure, axes = pyplot.subplots(
        rows,
        columns,
        figsize=(max(5.5, 3.2 * columns), 2.6 * rows + 0.6),
        sharex=True,
        sharey=True,
        squeeze=False,
    )
    for place, arm in zip(axes.flat, shown, strict=False):
        for name, colour in ((reference, "0.55"), (arm, "tab:blue")):
            if name not in arms or (name == reference == arm):
                continue
            xs, bands = _bands(arms[name])
            place.plot(xs, [band[0] for band in bands], color=colour, label=name)
            place.fill_between(
                xs, [b[1] for b in bands], [b[2] for b in bands], color=colour, alpha=0.2, lw=0
            )
        place.set_title(arm.replace("_", " "), fontsize=9)
        place.grid(alpha=0.3)
    for place in list(axes.flat)[len(shown) :]:
        place.set_axis_off()
    figure.supxlabel("iterations", fontsize=9)
    figure.supylabel("pass@1 on held-out maps", fontsize=9)
    figure.suptitle(f"FrozenLake: each arm (blue) against {reference} (grey)", fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _bands(curves: Sequence[Curve]) -> tuple[list[int], list[Interval]]:
    """Return the iterations at which every seed was evaluated, and the intervals there."""
    heights = [{entry["iteration"]: entry["solve_rate"] for entry in curve.evaluations} for curve in curves]
    shared = sorted(set.intersection(*(set(rates) for rates in heights)))
    return shared, [bootstrap([rates[number] for rates in heights]) for number in shared]
