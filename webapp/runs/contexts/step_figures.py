"""The tab of steps: length and number of steps over iterations, their map, and thinking by purpose."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add

from django.urls import reverse
from django.utils.http import urlencode

from engine.scanners.purposes import PURPOSES, Thinking
from webapp.core.contexts.frame import iteration_url, phase_label
from webapp.core.contexts.line_charts import LineChart, line_chart
from webapp.rollouts.selectors import scans as scan_reads
from webapp.runs.models.runs import Run
from webapp.runs.selectors.solve_map import Buckets
from webapp.runs.selectors.step_map import StepCell, StepMap, step_map

LEVELS = 5
"""Shades of the map; each stands for twice the tokens of the one before."""
_CELL_WIDTH = 13
"""Greatest width of a column, px."""
_TICKS = 8
"""Buckets between two labels of the axis."""
MOST_EVALUATIONS = 6
"""Newest evaluations with a column of their own."""
_COLOURS = dict(zip(PURPOSES, (4, 2, 3, 1, 7, 6), strict=True))
PURPOSE_WORDS: Mapping[str, str] = {
    "locate": "views, searches, and commands that only read",
    "edit": "writes of files",
    "test": "runs of the project's tests",
    "run": "other commands",
    "submit": "submissions",
    "other": "unknown tools, and steps without a parsed call",
}


@dataclass(frozen=True, slots=True)
class MapCell:
    """Steps of a bucket of iterations at one place of the rollout."""

    x: float
    """Left edge, per cent of the map's width."""
    level: str
    """Class of its colour: ``t1`` … ``t5``, or ``m-1`` where no tokens are known."""
    title: str
    url: str
    """Redirects to an example rollout."""


@dataclass(frozen=True, slots=True)
class MapRow:
    """Steps with one index, or some consecutive ones."""

    label: str
    steps: int
    tokens: float | None
    """Mean over all iterations."""
    cells: tuple[MapCell, ...]


@dataclass(frozen=True, slots=True)
class StepGrid:
    """The map: rows of step indices × columns of iterations."""

    rows: tuple[MapRow, ...]
    quantity: str
    """``thinking tokens``; ``generated tokens`` where no step has thinking tokens."""
    iterations: Buckets
    height: int
    """Step indices of a row."""
    width: int
    """Greatest width, px."""
    cell_width: float
    """Per cent of the width, with the gap to the next cell left out."""
    ticks: tuple[tuple[float, int], ...]
    """Left edge in per cent and first iteration of some buckets."""
    legend: tuple[tuple[str, float], ...]
    """Class and upper bound of each shade."""


@dataclass(frozen=True, slots=True)
class PurposeRow:
    """Steps of one purpose."""

    name: str
    words: str
    share: float | None
    """Of the steps of training."""
    training: Thinking
    evaluations: tuple[Thinking, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsPanel:
    """Lengths and thinking of the run's steps."""

    charts: tuple[LineChart, ...]
    """Over iterations: response length of a step, steps of a rollout, thinking by purpose."""
    since: str
    until: str
    grid: StepGrid | None
    """None before the first finished training iteration with steps."""
    applies: bool
    """Whether steps have purposes: the environment has a repository."""
    purposes: tuple[PurposeRow, ...]
    """Empty before the first rollout was scanned."""
    evaluations: tuple[tuple[str, str], ...]
    """Label and URL of the newest evaluations, oldest first."""
    num_evaluations: int


def build_steps(run: Run, *, hidden: bool) -> StepsPanel:
    """Build the tab from stored figures; ``hidden`` ones count as missing."""
    found = None if hidden else step_map(run.pk)
    applies = scan_reads.has_repository(run)
    points = scan_reads.thinking_over_time(run.pk) if applies and not hidden else {}
    training = {iteration: sums for (phase, iteration), sums in points.items() if phase == "train"}
    evaluations = [key for key in points if key[0].startswith("eval:")]
    shown = sorted(evaluations, key=lambda key: (key[1], key[0]))[-MOST_EVALUATIONS:]
    span = found.iterations if found else Buckets(min(training, default=0), max(training, default=0))
    charts = [*(_length_charts(found) if found else ()), *_purpose_chart(span, training)]
    return StepsPanel(
        charts=tuple(charts) if len(span) > 1 else (),
        since=f"iteration {span.first}",
        until=f"iteration {span.last}",
        grid=_grid(run.pk, found) if found else None,
        applies=applies,
        purposes=_purpose_rows(training.values(), [points[key] for key in shown]),
        evaluations=tuple((phase_label(*key), iteration_url(run.pk, *key)) for key in shown),
        num_evaluations=len(evaluations),
    )


def _length_charts(found: StepMap) -> tuple[LineChart, LineChart]:
    lengths, numbers = [], []
    for bucket in range(len(found.iterations)):
        cells = [cell for cell in found.cells if cell.bucket == bucket]
        steps, rollouts = sum(cell.steps for cell in cells), sum(cell.rollouts for cell in cells)
        x = _place(found.iterations, bucket)
        if steps:
            lengths.append((x, sum(cell.generated for cell in cells) / steps))
        if rollouts:
            numbers.append((x, steps / rollouts))
    return (
        line_chart("length", "Response length of a step", "tokens", {"mean": lengths}, colours={"mean": 1}),
        line_chart("number", "Steps of a rollout", "steps", {"mean": numbers}, colours={"mean": 3}),
    )


def _purpose_chart(span: Buckets, training: Mapping[int, Mapping[str, Thinking]]) -> tuple[LineChart, ...]:
    sums: dict[str, dict[int, Thinking]] = {name: {} for name in PURPOSES}
    for iteration, by_purpose in training.items():
        bucket = (iteration - span.first) // span.width
        for name, thinking in by_purpose.items():
            if thinking.steps and span.first <= iteration <= span.last:
                sums[name][bucket] = sums[name].get(bucket, Thinking()) + thinking
    lines = {
        name: [(_place(span, bucket), sums[name][bucket].mean or 0.0) for bucket in sorted(sums[name])]
        for name in PURPOSES
        if sums[name]
    }
    if not lines:
        return ()
    return (line_chart("purposes", "Thinking by purpose", "tokens per step", lines, colours=_COLOURS),)


def _place(span: Buckets, bucket: int) -> float:
    return bucket / max(1, len(span) - 1)


def _purpose_rows(
    training: Iterable[Mapping[str, Thinking]], evaluations: Iterable[Mapping[str, Thinking]]
) -> tuple[PurposeRow, ...]:
    iterations, shown = list(training), list(evaluations)
    totals = {name: reduce(add, (sums[name] for sums in iterations), Thinking()) for name in PURPOSES}
    steps = sum(total.steps for total in totals.values())
    return tuple(
        PurposeRow(
            name,
            PURPOSE_WORDS[name],
            totals[name].steps / steps if steps else None,
            totals[name],
            tuple(sums[name] for sums in shown),
        )
        for name in PURPOSES
        if totals[name].steps or any(sums[name].steps for sums in shown)
    )


def _grid(run_id: int, found: StepMap) -> StepGrid:
    has_thinking = any(cell.thinking for cell in found.cells)
    tokens = {
        (cell.row, cell.bucket): cell.thinking if has_thinking else cell.generated / cell.steps
        for cell in found.cells
    }
    top = max((value for value in tokens.values() if value is not None), default=0.0)
    quantity = "thinking tokens" if has_thinking else "generated tokens"
    by_row: dict[int, list[StepCell]] = {}
    for cell in found.cells:
        by_row.setdefault(cell.row, []).append(cell)
    span, url = found.iterations, reverse("step-example", args=[run_id])

    def one_cell(cell: StepCell) -> MapCell:
        columns, rows = span.range_of(cell.bucket), found.rows.range_of(cell.row)
        value = tokens[cell.row, cell.bucket]
        where = f"{_range('iteration', *columns)}, {_range('step', *rows)}"
        query = urlencode({"iterations": "-".join(map(str, columns)), "steps": "-".join(map(str, rows))})
        mean = "–" if value is None else f"{value:,.0f}"
        return MapCell(
            round(100 * cell.bucket / len(span), 2),
            _level(value, top),
            f"{where}: {mean} {quantity} on average, {cell.steps:,} steps",
            f"{url}?{query}",
        )

    return StepGrid(
        rows=tuple(
            MapRow(
                _range("", *found.rows.range_of(row)).strip(),
                sum(cell.steps for cell in cells),
                _mean([(cell.steps, tokens[cell.row, cell.bucket]) for cell in cells]),
                tuple(map(one_cell, cells)),
            )
            for row, cells in sorted(by_row.items())
        ),
        quantity=quantity,
        iterations=span,
        height=found.rows.width,
        width=_CELL_WIDTH * len(span),
        cell_width=round(92 / len(span), 2),  # the other 8 % are the gap
        ticks=tuple(
            (round(100 * bucket / len(span), 2), span.range_of(bucket)[0])
            for bucket in range(0, len(span), _TICKS)
        ),
        legend=tuple((f"t{level}", top / 2 ** (LEVELS - level)) for level in range(1, LEVELS + 1))
        if top
        else (),
    )


def _range(name: str, first: int, last: int) -> str:
    return f"{name} {first}" if first == last else f"{name}{'s' if name else ''} {first}–{last}"


def _mean(parts: Iterable[tuple[int, float | None]]) -> float | None:
    known = [(steps, value) for steps, value in parts if value is not None]
    return sum(steps * value for steps, value in known) / sum(steps for steps, _ in known) if known else None


def _level(value: float | None, top: float) -> str:
    if value is None:
        return "m-1"
    if not value or not top:
        return "t1"
    return f"t{max(1, LEVELS + math.ceil(math.log2(value / top)))}"
