"""The tab of behaviours: share of a run's rollouts with hits of each scanner, over iterations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from django.urls import reverse
from django.utils.http import urlencode

from engine.types import Verdict
from webapp.core.contexts.line_charts import LineChart, line_chart
from webapp.core.contexts.words import in_words
from webapp.rollouts.selectors import scans as reads
from webapp.rollouts.selectors.hacking import SCANNERS, TAMPERED
from webapp.rollouts.selectors.scans import ScannerInfo, Share
from webapp.runs.models.runs import Run
from webapp.runs.selectors.series import bucketed

_REWARD = "mean reward of training"
_COLOURS = {"training": 1, "evaluation": 3, _REWARD: 2}


@dataclass(frozen=True, slots=True)
class BehaviourRow:
    """A scanner with its shares in a run."""

    info: ScannerInfo
    applies: bool
    """Whether the scanner reads the rollouts of this run."""
    training: Share
    evaluation: Share
    url: str
    """Search for the rollouts with hits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BehavioursPanel:
    """Shares of the run's rollouts by scanner."""

    rows: tuple[BehaviourRow, ...]
    charts: tuple[LineChart, ...]
    """Shares over iterations of the scanners with hits; empty with fewer than two iterations."""
    since: str
    until: str
    """First and last iteration of the charts."""
    scanned: int
    """Rollouts that at least one scanner has read."""


def build_behaviours(run: Run, *, hidden: bool) -> BehavioursPanel:
    """Build the tab from the stored hits; ``hidden`` ones count as not scanned."""
    points = {} if hidden else reads.shares_over_time(run.pk)
    iterations = sorted({iteration for _, iteration in points})
    since, until = (iterations[0], iterations[-1]) if iterations else (0, 0)
    rewards, tampered = ({}, {}) if hidden else _reported(run, since, until)
    rows, charts = [], []
    for info in reads.scanners():
        parts: dict[str, dict[int, Share]] = {"training": {}, "evaluation": {}}
        for (phase, iteration), shares in points.items():
            if (share := shares.get(info.name)) and reads.applies(info, run):
                part = parts["evaluation" if phase.startswith("eval:") else "training"]
                part[iteration] = _sum((part.get(iteration), share))
        query = urlencode({"run": str(run.pk), "scanner": info.name})
        rows.append(
            BehaviourRow(
                info,
                reads.applies(info, run),
                _sum(parts["training"].values()),
                _sum(parts["evaluation"].values()),
                f"{reverse('trajectory-search')}?{query}",
            )
        )
        lines: dict[str, dict[float, float]] = {
            name: {i: share.rate or 0.0 for i, share in part.items()} for name, part in parts.items() if part
        }
        if any(rate for line in lines.values() for rate in line.values()):
            beside = {_REWARD: rewards} if info.name in SCANNERS and rewards else {}
            charts.append(_chart(info.name, lines | beside, since, until))
    if any(tampered.values()):
        charts.append(_chart(TAMPERED, {"training": tampered, _REWARD: rewards}, since, until))
    scanned = sum(max((share.scanned for share in shares.values()), default=0) for shares in points.values())
    return BehavioursPanel(
        rows=tuple(rows),
        charts=tuple(charts) if until > since else (),
        since=f"iteration {since}",
        until=f"iteration {until}",
        scanned=scanned,
    )


def _reported(run: Run, since: int, until: int) -> tuple[dict[float, float], dict[float, float]]:
    """Return mean reward and share of tampered verdicts of the training iterations that reported them."""
    keys = ("reward/mean", f"verdict/{Verdict.TAMPERED}")
    series = bucketed([run.pk], keys)[run.pk]
    rewards, tampered = (
        {
            x: value
            for x, value in zip(series.x, series.mean[key], strict=True)
            if value is not None and since <= x <= until
        }
        for key in keys
    )
    return rewards, tampered


def _chart(name: str, lines: Mapping[str, Mapping[float, float]], since: int, until: int) -> LineChart:
    points = {
        label: [((i - since) / max(1, until - since), values[i]) for i in sorted(values)]
        for label, values in lines.items()
    }
    return line_chart(name, in_words(name), "share of rollouts", points, colours=_COLOURS, top=1.0)


def _sum(parts: Iterable[Share | None]) -> Share:
    known = [part for part in parts if part is not None]
    return Share(sum(part.scanned for part in known), sum(part.found for part in known))
