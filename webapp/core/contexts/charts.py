"""Charts of a run: their metrics, and the points as columns.

The page receives a ``ChartSet`` as JSON; the live stream sends later ``Columns`` in the same format. To add a
chart, add it to ``RUN_CHARTS`` (only charts with at least one known metric are drawn).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from engine.types import TerminationReason
from webapp.core.contexts.metrics import METRICS
from webapp.core.contexts.words import in_words


@dataclass(frozen=True, slots=True)
class Series:
    """One line or band: metric key, legend, colour token ``--chart-<n>``, pattern of the line."""

    key: str
    label: str
    colour: int
    dash: int = 0


@dataclass(frozen=True, slots=True)
class ChartSpec:
    """One chart; ``stacked`` fills bands on top of each other."""

    id: str
    title: str
    unit: str
    series: tuple[Series, ...]
    stacked: bool = False
    span: tuple[float, float] | None = None
    """Fixed range of the y axis, where it has one."""
    joined: bool = False
    """Whether lines have their points at different places of x: the legend then shows the last one before."""


Columns = dict[str, list[float | None]]


def _single(chart_id: str, key: str, colour: int, *, span: tuple[float, float] | None = None) -> ChartSpec:
    """Return the chart of one metric, under the metric's own name and unit."""
    metric = METRICS[key]
    title = metric.label[:1].upper() + metric.label[1:]
    return ChartSpec(chart_id, title, metric.unit, (Series(key, metric.label, colour),), span=span)


RUN_CHARTS = (
    _single("reward", "reward/mean", 1),
    ChartSpec(
        "solve", "Groups solved", "share of groups",
        (
            Series("solve/cut_short", "all ended by time limits", 6), Series("solve/none", "none", 2),
            Series("solve/partial", "partial", 5), Series("solve/all", "all", 3),
        ),
        stacked=True, span=(0, 1),
    ),
    _single("steps", "steps/mean", 1),
    _single("response", "tokens/response_mean", 1),
    _single("thinking", "tokens/thinking_per_step", 4),
    ChartSpec(
        "termination", "Termination reasons", "share of rollouts",
        tuple(
            Series(f"termination/{reason}", in_words(reason), colour)
            for colour, reason in enumerate(TerminationReason, start=1)
        ),
        stacked=True,
    ),
    ChartSpec(
        "time", "Time split", "seconds",
        (
            Series("time/rollout", "rollout", 1), Series("time/update", "update", 3),
            Series("time/grading", "grading, summed over rollouts", 5),
        ),
    ),
    ChartSpec(
        "staleness", "Staleness of the batch", "weight updates",
        (Series("staleness/mean", "mean over tokens", 1), Series("staleness/max", "maximum", 2)),
    ),
    ChartSpec(
        "off_policy", "Off-policy share", "share",
        (
            Series("staleness/off_policy_share", "stale tokens", 1),
            Series("staleness/mixed_share", "rollouts with several versions", 5),
            Series("staleness/cancelled", "siblings cancelled by the deadline", 2),
        ),
        span=(0, 1),
    ),
    ChartSpec(
        "ratio", "Importance ratio", "over trained tokens",
        (Series("ratio/max", "maximum", 2), Series("ratio/mean", "mean", 1)),
    ),
    ChartSpec(
        "waits", "Waits", "seconds per rollout",
        (
            Series("time/sandbox_wait", "slot and sandbox", 5),
            Series("time/grading_wait", "grading slot", 4),
        ),
    ),
    ChartSpec(
        "curriculum", "Resting tasks", "tasks",
        (
            Series("curriculum/resting_none", "never solved", 2),
            Series("curriculum/resting_all", "always solved", 3),
            Series("curriculum/unmeasured", "not sampled yet", 6),
        ),
    ),
    _single("grading_extra", "grading/extra_share", 2, span=(0, 1)),
    ChartSpec(
        "loss", "Loss", "",
        (Series("loss/value", "loss", 1), Series("loss/heldout", "evaluation loss", 4)),
    ),
    ChartSpec(
        "kept", "Kept rollouts", "",
        (Series("kept/trajectories", "rollouts", 1), Series("kept/tasks", "tasks", 3)),
    ),
    _single("rate", "update/learning_rate", 7),
    _single("entropy", "entropy/mean", 8),
    _single("grad", "grad/norm", 6),
    ChartSpec(
        "clip", "Clipped tokens", "share", (Series("clip/high", "high", 2), Series("clip/low", "low", 1))
    ),
    ChartSpec(
        "mismatch", "Sampler–trainer mismatch", "nats per token",
        (
            Series("mismatch/mean", "|log π − log μ|", 1), Series("mismatch/kl_k1", "KL, k1", 2),
            Series("mismatch/kl_k3", "KL, k3", 3),
        ),
    ),
    ChartSpec(
        "effective", "Effective and masked tokens", "share",
        (
            Series("ratio/effective_share", "effective sample size", 1),
            Series("tokens/masked_share", "masked by clip or correction", 2),
        ),
    ),
    _single("engine_kv", "engine/kv_use", 1, span=(0, 1)),
    ChartSpec(
        "engine_requests", "Requests in engines", "mean over the iteration",
        (Series("engine/running", "running", 1), Series("engine/waiting", "waiting", 5)),
    ),
    _single("engine_throughput", "engine/tokens_per_s", 3),
    _single("engine_prefix", "engine/prefix_hit_rate", 4, span=(0, 1)),
    ChartSpec(
        "endpoint", "Requests to the endpoint", "requests",
        (
            Series("endpoint/answered", "answered", 3), Series("endpoint/repeated", "repeated", 5),
            Series("endpoint/rate_limited", "rate limited", 2),
        ),
    ),
    _single("engine_restarts", "engine/restarts", 2),
    _single("publish_time", "publish/seconds", 1),
    _single("publish_replicas", "publish/replicas", 3),
    ChartSpec(
        "machine", "Machine load", "",
        (
            Series("machine/load", "runnable processes per core", 1),
            Series("machine/throttled_share", "share of time at the CPU quota", 2),
        ),
    ),
    ChartSpec(
        "loop", "Event loop blocked", "milliseconds per block",
        (
            Series("loop/held_max_ms", "longest", 2), Series("loop/held_p999_ms", "99.9th percentile", 5),
            Series("loop/held_p99_ms", "99th percentile", 1),
        ),
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ChartSet:
    """Charts with at least one reported metric, and their points as columns."""

    specs: tuple[ChartSpec, ...]
    x: list[float]
    columns: Columns
    x_label: str = "iteration"
    time: bool = False
    """True if ``x`` is Unix time, seconds."""
    bucketed: bool = False
    """True if points are means of several iterations; a shorter range then shows more detail."""
    low: Columns = field(default_factory=dict)
    """Lower end of the band around a line, by key."""
    high: Columns = field(default_factory=dict)

    def as_json(self) -> dict[str, object]:
        """Return the charts in the format of ``js/charts.js``."""
        return {
            "xLabel": self.x_label,
            "time": self.time,
            "bucketed": self.bucketed,
            "specs": [
                {
                    "id": spec.id, "title": spec.title, "unit": spec.unit, "stacked": spec.stacked,
                    "span": spec.span, "joined": spec.joined,
                    "series": [
                        {"key": s.key, "label": s.label, "colour": s.colour, "dash": s.dash}
                        for s in spec.series
                    ],
                }
                for spec in self.specs
            ],
            "x": self.x,
            "columns": self.columns,
            "low": self.low,
            "high": self.high,
        }  # fmt: skip


REWARD = "reward/mean"
CHARTED = tuple(series.key for spec in RUN_CHARTS for series in spec.series)
"""Metrics that the charts of a run draw."""


def run_charts(points: Sequence[tuple[int, Mapping[str, float | None]]]) -> ChartSet:
    """Return the charts of (iteration, metrics); None where a metric was not reported."""
    x = [float(index) for index, _ in points]
    return charts_of(x, {key: [metrics.get(key) for _, metrics in points] for key in CHARTED})


def charts_of(x: list[float], columns: Columns, *, bucketed: bool = False) -> ChartSet:
    """Return the charts of a run; series that were never reported are left out."""
    known = {key for key, values in columns.items() if any(value is not None for value in values)}
    # Termination reasons that never occurred would only lengthen the legend.
    known -= {key for key in known if key.startswith("termination/") and not any(columns[key])}
    specs = []
    for spec in RUN_CHARTS:
        series = tuple(s for s in spec.series if s.key in known)
        if series:
            specs.append(replace(spec, series=series))
    known_columns = {key: columns[key] for key in columns if key in known}
    return ChartSet(tuple(specs), x, known_columns, bucketed=bucketed)


def announced_charts(names: Sequence[str]) -> ChartSet:
    """Return charts without a point, by their names, for a run without a finished iteration."""
    specs = tuple(spec for spec in RUN_CHARTS if spec.id in names)
    return ChartSet(specs, [], {series.key: [] for spec in specs for series in spec.series})
