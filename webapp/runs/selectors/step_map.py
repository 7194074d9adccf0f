"""Steps of a training run, iterations × step index in buckets, from stored profiles of iterations."""

from __future__ import annotations

from dataclasses import dataclass

from django.db import connection

from webapp.runs.selectors.solve_map import Buckets

_EXTENT = """
SELECT min(index), max(index), max(jsonb_array_length(profile->'steps')) FROM webapp_iteration
WHERE run_id = %s AND jsonb_array_length(profile->'steps') > 0
"""
_CELLS = """
SELECT (i.index - %(first)s) / %(width)s AS bucket, (p.number - 1) / %(height)s AS row,
    coalesce(sum(p.steps::bigint) FILTER (WHERE p.number = 1), 0)::bigint,
    sum(p.steps::bigint)::bigint,
    sum(p.steps::float8 * p.generated::float8),
    sum(p.steps::float8 * p.thinking::float8) / nullif(sum(p.steps::float8)
        FILTER (WHERE p.thinking IS NOT NULL), 0)
FROM webapp_iteration i CROSS JOIN ROWS FROM (
    jsonb_array_elements_text(i.profile->'steps'), jsonb_array_elements_text(i.profile->'generated'),
    jsonb_array_elements_text(i.profile->'thinking')
) WITH ORDINALITY AS p(steps, generated, thinking, number)
WHERE i.run_id = %(run)s AND p.steps IS NOT NULL
GROUP BY 1, 2 ORDER BY 1, 2
"""


@dataclass(frozen=True, slots=True)
class StepCell:
    """Steps of a bucket of iterations and a bucket of step indices."""

    bucket: int
    row: int
    rollouts: int
    """Rollouts with a first step; 0 in all rows but the first."""
    steps: int
    generated: float
    """Generated tokens of all of them."""
    thinking: float | None
    """Mean thinking tokens of a step; None where they are not known."""


@dataclass(frozen=True, slots=True)
class StepMap:
    """Training steps of a run, all phases but ``train`` left out."""

    iterations: Buckets
    rows: Buckets
    """Indices of steps."""
    cells: tuple[StepCell, ...]
    """In the order of bucket and row; those without a step are left out."""


def step_map(run_id: int) -> StepMap | None:
    """Return the map with two queries; None before the first finished iteration with steps."""
    with connection.cursor() as cursor:
        cursor.execute(_EXTENT, [run_id])
        first, last, length = cursor.fetchone()
        if first is None:
            return None
        iterations, rows = Buckets(first, last), Buckets(0, length - 1)
        cursor.execute(
            _CELLS, {"run": run_id, "first": first, "width": iterations.width, "height": rows.width}
        )
        cells = tuple(StepCell(*row) for row in cursor.fetchall())
    return StepMap(iterations, rows, cells)
