"""Small line charts drawn by the server, for panels that are replaced while a run is live."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 300, 80


@dataclass(frozen=True, slots=True)
class Line:
    """One series, as points of an SVG path."""

    name: str
    colour: int
    path: str
    last: float | None


@dataclass(frozen=True, slots=True)
class LineChart:
    """Chart of one quantity, with one or more series."""

    id: str
    title: str
    unit: str
    top: float
    """Value at the upper end of the y axis."""
    lines: tuple[Line, ...]


def line_chart(
    identifier: str,
    title: str,
    unit: str,
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    colours: Mapping[str, int],
    top: float | None = None,
) -> LineChart:
    """Return a chart whose y axis starts at 0.

    Args:
        identifier: unique among the charts of a panel.
        title: name of the quantity.
        unit: unit of the values.
        series: points of each series by its name; x from 0 to 1.
        colours: colour token of each series.
        top: fixed upper end of the y axis; None selects the greatest value.
    """
    highest = top or max((y for points in series.values() for _, y in points), default=0.0) or 1.0
    lines = tuple(
        Line(
            name,
            colours[name],
            " ".join(
                f"{WIDTH * x:.1f},{HEIGHT - HEIGHT * min(max(y, 0.0), highest) / highest:.1f}"
                # A single point twice: a line from it to itself is drawn as a dot.
                for x, y in (points if len(points) > 1 else (*points, *points))
            ),
            points[-1][1] if points else None,
        )
        for name, points in series.items()
    )
    return LineChart(identifier, title, unit, highest, lines)
