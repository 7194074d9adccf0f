"""Size of models against their scores, from stored evaluations."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.urls import reverse

from webapp.core.contexts.frame import phase_label
from webapp.rollouts.selectors.attempts import newest_evaluations

MOST_ROWS = 60
"""Newest evaluations of a set that are shown."""
_SIZE = re.compile(r"(?<![A-Za-z0-9.])(\d{1,4}(?:\.\d{1,3})?)([bm])(?![a-z0-9])", re.IGNORECASE)
_UNITS = {"m": 1e6, "b": 1e9}
_HEIGHT, _MARGIN = 180.0, 12.0
"""Of the plot, px: between 0 and 100 %, and above and below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelScore:
    """The newest evaluation of one run in a set."""

    run: int
    run_name: str
    phase: str
    iteration: int
    model: str
    parameters: float | None
    """As named in the model's name; None where it names no size."""
    dataset: str
    split: str
    num_tasks: int
    num_samples: int
    solve_rate: float
    interval_low: float
    interval_high: float
    """95 %."""

    @property
    def set_name(self) -> str:
        """Return dataset and split of the evaluation: scores of other sets are not comparable."""
        return f"{self.dataset} {self.split}"

    @property
    def size_label(self) -> str:
        """Return the size in words; empty where it is unknown."""
        return size_label(self.parameters) if self.parameters else ""

    @property
    def label(self) -> str:
        """Return the evaluation in words."""
        return phase_label(self.phase, self.iteration)

    @property
    def url(self) -> str:
        """Return the URL of its report."""
        return reverse("evaluation-report", args=[self.run, self.phase, self.iteration])


@dataclass(frozen=True, slots=True)
class SizePoint:
    """A score in the plot: x in per cent, y in px."""

    score: ModelScore
    x: float
    y: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SizesPanel:
    """Scores of one set."""

    sets: tuple[tuple[str, str], ...]
    chosen: str
    scores: tuple[ModelScore, ...]
    """By size, unknown ones last; then by rate."""
    num_scores: int
    """Scores of the set, of which ``MOST_ROWS`` are shown."""
    points: tuple[SizePoint, ...]
    """Empty unless two models of different size have scores."""
    ticks: tuple[tuple[float, str], ...]
    """Place in per cent and label of sizes on the x axis."""


def size_of(model: str) -> float | None:
    """Return the number of parameters that a model's name states, such as 32e9 for ``Qwen3-32B``."""
    found = _SIZE.search(model[:500])
    return float(found[1]) * _UNITS[found[2].lower()] if found else None


def model_scores() -> list[ModelScore]:
    """Return the newest evaluation of each run and name, of models only, newest run first; at most 200."""
    scores = []
    for row in newest_evaluations():
        policy: Mapping[str, Any] = row.run.config.get("policy") or {}
        model = str(policy.get("checkpoint") or policy.get("model") or "")
        if policy.get("type") not in ("transformer", "endpoint") or not model:
            continue
        # A training run names the evaluation of its ``evaluation.split`` "heldout".
        other = (row.run.config.get("evaluation") or {}) if row.name == "heldout" else {}
        dataset = other.get("dataset") or (row.run.config.get("dataset") or {}).get("name") or "unknown"
        scores.append(
            ModelScore(
                run=row.run_id,
                run_name=row.run.name,
                phase=f"eval:{row.name}",
                iteration=row.iteration,
                model=model,
                parameters=size_of(model),
                dataset=str(dataset),
                split=str(other.get("split") or row.name),
                num_tasks=row.num_tasks,
                num_samples=row.num_samples,
                solve_rate=row.solve_rate,
                interval_low=row.interval_low,
                interval_high=row.interval_high,
            )
        )
    return scores


def build_sizes(params: Mapping[str, str]) -> SizesPanel:
    """Return the scores of the set named by ``set``, else of the set with the most models."""
    by_set: dict[str, list[ModelScore]] = {}
    for score in model_scores():
        by_set.setdefault(score.set_name, []).append(score)
    chosen = params.get("set", "")
    if chosen not in by_set:
        chosen = max(by_set, key=lambda name: len({score.model for score in by_set[name]}), default="")
    found = by_set.get(chosen, [])
    shown = sorted(
        found[:MOST_ROWS], key=lambda score: (score.parameters or math.inf, score.model, -score.solve_rate)
    )
    sizes = {score.parameters for score in shown if score.parameters}
    has_plot = len(sizes) > 1
    return SizesPanel(
        sets=tuple((name, f"{name} ({len(by_set[name])})") for name in sorted(by_set)),
        chosen=chosen,
        scores=tuple(shown),
        num_scores=len(found),
        points=tuple(_point(score, sizes) for score in shown if score.parameters) if has_plot else (),
        ticks=tuple((_x(size, sizes), size_label(size)) for size in sorted(sizes)) if has_plot else (),
    )


def size_label(parameters: float) -> str:
    """Return ``32B`` or ``135M``."""
    unit = "b" if parameters >= 1e9 else "m"
    return f"{parameters / _UNITS[unit]:g}{unit.upper()}"


def _x(size: float, sizes: set[float]) -> float:
    low, high = math.log(min(sizes)), math.log(max(sizes))
    return round(14 + 80 * (math.log(size) - low) / (high - low), 2)


def _point(score: ModelScore, sizes: set[float]) -> SizePoint:
    low, at, high = (
        round(_MARGIN + _HEIGHT * (1 - min(max(rate, 0.0), 1.0)), 1)
        for rate in (score.interval_low, score.solve_rate, score.interval_high)
    )
    return SizePoint(score, _x(score.parameters or 1.0, sizes), at, low, high)
