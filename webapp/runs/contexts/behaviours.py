"""The tab of behaviours: share of a run's rollouts with hits of each scanner, over iterations."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from django.urls import reverse
from django.utils.http import urlencode

from webapp.core.contexts.line_charts import LineChart, line_chart
from webapp.core.contexts.words import in_words
from webapp.rollouts.selectors import scans as reads
from webapp.rollouts.selectors.scans import ScannerInfo, Share
from webapp.runs.models.runs import Run

_COLOURS = {"training": 1, "evaluation": 3}


@dataclass(frozen=True, slots=True)
class BehaviourRow:
    """A scanner with its shares in a run."""

    info: ScannerInfo
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
    rows, charts = [], []
    for info in reads.scanners():
        parts: dict[str, dict[int, Share]] = {"training": {}, "evaluation": {}}
        for (phase, iteration), shares in points.items():
            if share := shares.get(info.name):
                part = parts["evaluation" if phase.startswith("eval:") else "training"]
                part[iteration] = _sum((part.get(iteration), share))
        query = urlencode({"run": str(run.pk), "scanner": info.name})
        rows.append(
            BehaviourRow(
                info,
                _sum(parts["training"].values()),
                _sum(parts["evaluation"].values()),
                f"{reverse('trajectory-search')}?{query}",
            )
        )
        if until > since and any(share.found for part in parts.values() for share in part.values()):
            charts.append(
                line_chart(
                    info.name,
                    in_words(info.name),
                    "share of rollouts",
                    {
                        name: [((i - since) / (until - since), part[i].rate or 0.0) for i in sorted(part)]
                        for name, part in parts.items()
                        if part
                    },
                    colours=_COLOURS,
                    top=1.0,
                )
            )
    scanned = sum(max((share.scanned for share in shares.values()), default=0) for shares in points.values())
    return BehavioursPanel(
        rows=tuple(rows),
        charts=tuple(charts),
        since=f"iteration {since}",
        until=f"iteration {until}",
        scanned=scanned,
    )


def _sum(parts: Iterable[Share | None]) -> Share:
    known = [part for part in parts if part is not None]
    return Share(sum(part.scanned for part in known), sum(part.found for part in known))
