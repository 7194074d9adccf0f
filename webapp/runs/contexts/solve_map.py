"""The tab of the solve map: tasks × iterations as rows of cells, each a link to its group or its groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from webapp.core.contexts.frame import group_url
from webapp.core.contexts.numbers import whole
from webapp.core.selectors import Page
from webapp.runs.selectors.solve_map import SORTS, Buckets, Cell, SolvedTask, SolveMap, solve_map

_CELL_WIDTH = 13
"""Greatest width of a column, px."""
DEFAULT_SORT = "-change"
_TICKS = 8
"""Buckets between two labels of the axis."""


@dataclass(frozen=True, slots=True)
class MapCell:
    """Groups of a task."""

    x: float
    """Left edge, per cent of the map's width."""
    level: str
    """Class of its colour: ``m0`` (none solved) … ``m4`` (all), or ``m-1`` where nothing was graded, or time
    limits ended all."""
    title: str
    url: str


@dataclass(frozen=True, slots=True)
class MapRow:
    """A task and its groups."""

    task: SolvedTask
    url: str
    cells: tuple[MapCell, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TasksPanel:
    """The task × iteration solve map; without a page before the first group."""

    page: Page[MapRow] | None
    sort: str
    width: int = 0
    """Greatest width of the map, px."""
    cell_width: float = 0.0
    """Per cent of the map's width, with the gap to the next cell left out."""
    buckets: Buckets | None = None
    ticks: tuple[tuple[float, int], ...] = ()
    """Left edge in per cent and first iteration of some buckets."""


def level_of(solved: int, graded: int, cut_short: int = 0) -> int:
    """Return the solve rate in quarters, at least 1 if any sibling solved the task; -1 if it is unknown.

    It is unknown if a time limit ended all graded siblings: more time might have solved the task.
    """
    if graded <= cut_short:
        return -1
    return max(1, (4 * solved) // graded) if solved else 0


def build_tasks(run_id: int, params: Mapping[str, str]) -> TasksPanel:
    """Return a page of the map, selected and sorted by the query string."""
    sort = params.get("sort", "")
    sort = sort if sort.removeprefix("-") in SORTS else DEFAULT_SORT
    grid = solve_map(run_id, sort=sort, number=whole(params.get("page", "")) or 1)
    if grid is None:
        return TasksPanel(page=None, sort=sort)
    rows = [_row(run_id, grid, task) for task in grid.page.rows]
    return TasksPanel(
        page=Page(rows, grid.page.total, grid.page.number, grid.page.size),
        sort=sort,
        width=_CELL_WIDTH * len(grid.buckets),
        cell_width=round(92 / len(grid.buckets), 2),  # the other 8 % are the gap
        buckets=grid.buckets,
        ticks=tuple(
            (_left(grid.buckets, bucket), grid.buckets.range_of(bucket)[0])
            for bucket in range(0, len(grid.buckets), _TICKS)
        ),
    )


def _left(buckets: Buckets, bucket: int) -> float:
    return round(100 * bucket / len(buckets), 2)


def _row(run_id: int, grid: SolveMap, task: SolvedTask) -> MapRow:
    url = f"?{urlencode({'tab': 'groups', 'phase': 'train', 'task': task.key})}"
    cells = tuple(_cell(run_id, grid.buckets, task.key, url, cell) for cell in grid.cells[task.key])
    return MapRow(task, url, cells)


def _cell(run_id: int, buckets: Buckets, key: str, url: str, cell: Cell) -> MapCell:
    first, last = buckets.range_of(cell.bucket)
    several = cell.groups > 1
    where = f"iteration {first}" if first == last else f"iterations {first}–{last}"
    return MapCell(
        _left(buckets, cell.bucket),
        f"m{level_of(cell.solved, cell.graded, cell.cut_short)}",
        f"{where}: {cell.solved} of {cell.graded} solved"
        + (f", {cell.cut_short} ended by a time limit" if cell.cut_short else "")
        + (f", {cell.groups} groups" if several else ""),
        f"{url}&first={first}&last={last}" if several else group_url(run_id, "train", cell.iteration, key),
    )
