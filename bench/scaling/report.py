"""Report of the bench of test-time scaling: tables, curves as CSV, JSON and a figure."""

from __future__ import annotations

import csv
import io
import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.scaling.outcomes import (
    RANDOM,
    SELECTORS,
    Interval,
    Rates,
    SeedOutcome,
    best_at_k,
    difference,
    intervals,
    within_budget,
)

LABELS = {
    "ef": "execution-free",
    "eb": "execution-based",
    "hybrid": "hybrid",
    "shortest": "shortest",
    "majority": "majority patch",
    "oracle": "oracle (pass@K)",
    RANDOM: "random (pass@1)",
}
COMPARED = (
    ("ef", RANDOM),
    ("eb", RANDOM),
    ("hybrid", RANDOM),
    ("hybrid", "ef"),
    ("hybrid", "eb"),
    ("oracle", "hybrid"),
)
"""Pairs of selectors whose difference at the largest K is reported."""
_BUDGETS = 16
"""Number of token budgets."""


def write_report(
    outcomes: Sequence[SeedOutcome], folder: Path, *, name: str, facts: Mapping[str, Any]
) -> str:
    """Write ``NAME.json``, ``.csv``, ``.md`` and ``.png``; return the tables.

    Args:
        outcomes: outcome of every seed.
        folder: output folder.
        name: name of the files, without their endings.
        facts: sizes and summaries of the runs, for the JSON.
    """
    largest = max(sum(one.task_id == task for one in outcomes[0].candidates) for task in _tasks(outcomes))
    ks = range(1, largest + 1)
    rates = best_at_k(outcomes, ks)
    found = {selector: intervals(rates[selector]) for selector in SELECTORS}
    budgets = _budgets(outcomes)
    by_budget = intervals(within_budget(outcomes, budgets))
    text = f"{_table(found, ks)}\n\n{_compared(rates)}\n\n{_judges(outcomes)}"
    folder.mkdir(parents=True, exist_ok=True)
    summary = {
        "machine": {"processor": platform.processor() or platform.machine(), "load": os.getloadavg()},
        **facts,
        "best_at_k": {selector: _rounded(found[selector]) for selector in SELECTORS},
        "differences": {
            f"{first} - {second}": _rounded(difference(rates, first, second)[-1:])[0]
            for first, second in COMPARED
        },
        "within_budget": dict(zip(map(str, budgets), _rounded(by_budget), strict=True)),
        "judges": {str(one.seed): _judge(one) for one in outcomes},
    }
    (folder / f"{name}.json").write_text(json.dumps(summary, indent=2) + "\n")
    (folder / f"{name}.csv").write_text(_csv(found, rates, by_budget, budgets, outcomes))
    (folder / f"{name}.md").write_text(f"# Test-time scaling\n\n{_READING}\n\n{text}\n")
    _draw(found, by_budget, budgets, folder / f"{name}.png")
    return text


_READING = (
    "Best@K on held-out tasks, mean over seeds and tasks [95 % bootstrap interval over both]. K rollouts are "
    "drawn without replacement, counted exactly; ties count as their mean. Differences are paired by seed "
    "and task, at the largest K. AUC within tasks is over pairs of rollouts of one task."
)


def _tasks(outcomes: Sequence[SeedOutcome]) -> set[str]:
    return {candidate.task_id for outcome in outcomes for candidate in outcome.candidates}


def _budgets(outcomes: Sequence[SeedOutcome]) -> list[int]:
    """Return budgets up to the longest rollout, tokens."""
    longest = max(attempt.generated_tokens for outcome in outcomes for attempt in outcome.attempts)
    return sorted({round(longest * part / _BUDGETS) for part in range(1, _BUDGETS + 1)})


def _table(found: Mapping[str, Sequence[Interval]], ks: Sequence[int]) -> str:
    shown = [k for k in ks if k & (k - 1) == 0 or k == ks[-1]]
    lines = [f"| selector | {' | '.join(f'K = {k}' for k in shown)} |", "|" + "---|" * (len(shown) + 1)]
    for selector in SELECTORS:
        cells = [_cell(found[selector][k - 1]) for k in shown]
        lines.append(f"| {' | '.join([LABELS[selector], *cells])} |")
    return "\n".join(lines)


def _compared(rates: Mapping[str, Rates]) -> str:
    lines = ["| difference at the largest K | |", "|---|---|"]
    for first, second in COMPARED:
        cell = _cell(difference(rates, first, second)[-1], "+.3f")
        lines.append(f"| {LABELS[first]} − {LABELS[second]} | {cell} |")
    return "\n".join(lines)


def _judge(outcome: SeedOutcome) -> dict[str, Any]:
    calibration = outcome.calibration
    return {
        "rollouts": calibration.count,
        "resolved": calibration.num_positive,
        "auc": calibration.auc,
        "within_task_auc": calibration.within_group_auc,
        "ece": calibration.ece,
    }


def _judges(outcomes: Sequence[SeedOutcome]) -> str:
    lines = [
        "| judge of seed | held-out rollouts | resolved | AUC | AUC within tasks | ECE |",
        "|---|---|---|---|---|---|",
    ]
    for outcome in outcomes:
        judge = _judge(outcome)
        shares = [
            "–" if judge[key] is None else f"{judge[key]:.3f}" for key in ("auc", "within_task_auc", "ece")
        ]
        lines.append(f"| {outcome.seed} | {judge['rollouts']} | {judge['resolved']} | {' | '.join(shares)} |")
    return "\n".join(lines)


def _cell(interval: Interval, spec: str = ".3f") -> str:
    mean, low, high = (format(value, spec) for value in interval)
    return f"{mean} [{low}, {high}]"


def _rounded(found: Sequence[Interval]) -> list[list[float]]:
    return [[round(value, 5) for value in interval] for interval in found]


def _csv(
    found: Mapping[str, Sequence[Interval]],
    rates: Mapping[str, Rates],
    by_budget: Sequence[Interval],
    budgets: Sequence[int],
    outcomes: Sequence[SeedOutcome],
) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["curve", "x", "rate", "low", "high", *(f"seed {outcome.seed}" for outcome in outcomes)])
    for selector in SELECTORS:
        by_seed = np.nanmean(rates[selector], axis=1)
        for index, interval in enumerate(found[selector]):
            values = [*interval, *by_seed[:, index]]
            writer.writerow([selector, index + 1, *(f"{value:.4f}" for value in values)])
    for budget, interval in zip(budgets, by_budget, strict=True):
        writer.writerow(["within tokens", budget, *(f"{value:.4f}" for value in interval)])
    return stream.getvalue()


def _draw(
    found: Mapping[str, Sequence[Interval]], by_budget: Sequence[Interval], budgets: Sequence[int], path: Path
) -> None:
    """Draw pass@1 within token budgets and Best@K of every selector, with bands of their intervals."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.2), width_ratios=(2, 3))
    left.plot(budgets, [b[0] for b in by_budget], marker="o", markersize=3)
    left.fill_between(budgets, [b[1] for b in by_budget], [b[2] for b in by_budget], alpha=0.15, lw=0)
    left.set(xlabel="generated tokens of a rollout, at most", ylabel="solved held-out rollouts", ylim=(0, 1))
    left.set_title("Scaling with tokens", fontsize=10)
    for number, selector in enumerate(SELECTORS):
        ks = range(1, len(found[selector]) + 1)
        line = "--" if selector in ("oracle", RANDOM) else "-"
        right.plot(ks, [b[0] for b in found[selector]], line, color=f"C{number}", label=LABELS[selector])
        lows, highs = [b[1] for b in found[selector]], [b[2] for b in found[selector]]
        right.fill_between(ks, lows, highs, color=f"C{number}", alpha=0.08, lw=0)
    right.set(xlabel="K, rollouts to select from", ylabel="Best@K on held-out tasks", ylim=(0, 1))
    right.set_title("Scaling with rollouts", fontsize=10)
    right.legend(fontsize=7, loc="lower right")
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
