"""Number of seeds that an experiment needs, and the gain that a number of seeds shows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from engine.errors import ConfigError, Problem
from engine.evaluation.seeds import MAX_SEEDS, seeds_needed, smallest_gain
from webapp.experiments.contexts.arms import build_cells
from webapp.experiments.contexts.results import build_results
from webapp.experiments.models import Experiment


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """A paired two-sided comparison of two arms at 5 %, with a power of 80 %."""

    deviation: float
    """Standard deviation over seeds within an arm, in the unit of the result."""
    source: str
    """Origin of ``deviation``, in words."""
    gain: float | None
    seeds_needed: int | None
    """Fewest seeds of each arm that show ``gain``; None without a gain, or for more than 10,000."""
    seeds: int | None
    smallest_gain: float | None
    """Smallest gain that ``seeds`` seeds show; None for fewer than two."""


def compute_power(
    *,
    deviation: float | None,
    experiment: Experiment | None,
    gain: float | None = None,
    seeds: int | None = None,
) -> Power:
    """Compute the power of a comparison.

    Args:
        deviation: standard deviation over seeds; None: that of the finished runs of ``experiment``.
        experiment: experiment whose finished runs show the spread.
        gain: difference that shall be shown, in the unit of the result: 0.02 is 2 percentage points.
        seeds: planned number of seeds of each arm.

    Raises:
        ConfigError: no spread is known, or a number is out of range.
    """
    problems = []
    if deviation is not None and not 0 < deviation < math.inf:
        problems.append(Problem(f"expected a number above 0, not {deviation}", "deviation"))
    if gain is not None and not 0 < gain < math.inf:
        problems.append(Problem(f"expected a number above 0, not {gain}", "gain"))
    if seeds is not None and not 1 <= seeds <= MAX_SEEDS:
        problems.append(Problem(f"expected a number from 1 to {MAX_SEEDS:,}", "seeds"))
    if problems:
        raise ConfigError(*problems)
    source = "given"
    if deviation is None:
        results = build_results(build_cells(experiment)) if experiment is not None else None
        if experiment is None or results is None or not results.deviation:
            message = "unknown: give a standard deviation, or an experiment with finished runs that differ"
            raise ConfigError(Problem(message, "deviation"))
        deviation = results.deviation
        source = f"{results.num_results} finished runs of {experiment.name}, {results.metric}"
    shown = smallest_gain(seeds, deviation) if seeds is not None else None
    if shown is not None and not math.isfinite(shown):
        raise ConfigError(Problem("too large for a number of seeds", "deviation"))
    return Power(
        deviation=deviation,
        source=source,
        gain=gain,
        seeds_needed=seeds_needed(gain, deviation) if gain is not None else None,
        seeds=seeds,
        smallest_gain=shown,
    )


def posted_power(values: Mapping[str, str], *, experiment: Experiment | None, seeds: int | None) -> Power:
    """Compute the power from the fields ``gain`` and ``deviation`` of a form. Raises ConfigError."""
    return compute_power(
        deviation=_number(values, "deviation"),
        experiment=experiment,
        gain=_number(values, "gain"),
        seeds=seeds,
    )


def _number(values: Mapping[str, str], name: str) -> float | None:
    text = values.get(name, "").strip()
    try:
        return float(text) if text else None
    except ValueError:
        raise ConfigError(Problem(f"expected a number, not '{text[:100]}'", name)) from None
