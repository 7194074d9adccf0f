"""Charts of one task over a run's iterations and evaluations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from django.urls import reverse

from webapp.core.contexts.line_charts import LineChart, line_chart
from webapp.evaluations.contexts.comparison import compare_query
from webapp.rollouts.selectors.attempts import Point
from webapp.rollouts.selectors.task_history import MOST_GROUPS, TaskPoint, task_history
from webapp.runs.models.runs import Run
from webapp.runs.selectors.solve_map import Buckets

_COLOURS = (1, 3, 2, 4, 5, 6, 7, 8, 9)
_MEASURES: tuple[tuple[str, str, str, Callable[[TaskPoint], float | None], float | None], ...] = (
    ("rate", "Solve rate", "share of graded rollouts", lambda point: point.rate, 1.0),
    ("steps", "Steps of a rollout", "steps", lambda point: point.steps, None),
    ("thinking", "Thinking tokens", "tokens per step", lambda point: point.thinking, None),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskHistory:
    """One task over the iterations and evaluations of a run."""

    charts: tuple[LineChart, ...]
    """Empty for a single iteration."""
    since: str
    until: str
    points: Mapping[int, TaskPoint]
    """By group."""
    compare_urls: Mapping[int, str]
    """By group of a later evaluation: its rollouts beside those of the first evaluation of its name."""
    is_cut: bool
    """Whether older groups are left out."""


def build_task_history(run: Run, task_key: str) -> TaskHistory | None:
    """Return the history of a task; None without a group."""
    points = task_history(run.pk, task_key)
    if not points:
        return None
    span = Buckets(points[0].iteration, points[-1].iteration)
    return TaskHistory(
        charts=_charts(points, span) if span.last > span.first else (),
        since=f"iteration {span.first}",
        until=f"iteration {span.last}",
        points={point.group_id: point for point in points},
        compare_urls=_compare_urls(run, task_key, points),
        is_cut=len(points) == MOST_GROUPS,
    )


def _charts(points: Sequence[TaskPoint], span: Buckets) -> tuple[LineChart, ...]:
    phases = sorted({point.phase for point in points}, key=lambda phase: (phase != "train", phase))
    labels = {phase: "training" if phase == "train" else phase.removeprefix("eval:") for phase in phases}
    colours = {labels[phase]: _COLOURS[i % len(_COLOURS)] for i, phase in enumerate(phases)}
    charts = []
    for name, title, unit, value, top in _MEASURES:
        lines = {labels[phase]: _line(points, phase, span, value) for phase in phases}
        lines = {label: line for label, line in lines.items() if line}
        if lines:
            charts.append(line_chart(f"task-{name}", title, unit, lines, colours=colours, top=top))
    return tuple(charts)


def _line(
    points: Sequence[TaskPoint], phase: str, span: Buckets, value: Callable[[TaskPoint], float | None]
) -> list[tuple[float, float]]:
    """Return the means over the buckets of iterations."""
    buckets: dict[int, list[float]] = {}
    for point in points:
        if point.phase == phase and (known := value(point)) is not None:
            buckets.setdefault((point.iteration - span.first) // span.width, []).append(known)
    last = max(1, len(span) - 1)
    return [(bucket / last, sum(values) / len(values)) for bucket, values in sorted(buckets.items())]


def _compare_urls(run: Run, task_key: str, points: Sequence[TaskPoint]) -> dict[int, str]:
    first: dict[str, TaskPoint] = {}
    urls = {}
    for point in points:
        if point.phase == "train" or first.setdefault(point.phase, point) is point:
            continue
        before, after = (
            Point(run=run, phase=point.phase, iteration=iteration)
            for iteration in (first[point.phase].iteration, point.iteration)
        )
        urls[point.group_id] = reverse("evaluation-compare-task", args=[task_key]) + compare_query(
            before, after
        )
    return urls
