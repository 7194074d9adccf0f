"""The task × iteration solve map as rows of cells, each a link to its group."""

from __future__ import annotations

from dataclasses import dataclass

from webapp.contexts.frame import group_url
from webapp.selectors.run.iterations import SolveMap

CELL_WIDTH = 13


@dataclass(frozen=True, slots=True)
class MapCell:
    """One group: ``level`` 0 (none solved) … 4 (all), or -1 where nothing was graded."""

    iteration: int
    x: int
    """Left edge, px."""
    level: int
    solved: int
    graded: int
    url: str


@dataclass(frozen=True, slots=True)
class MapRow:
    """A task's groups."""

    task_key: str
    name: str
    cells: tuple[MapCell, ...]
    solved: int
    graded: int


def level_of(solved: int, graded: int) -> int:
    """Return quarter of the siblings that solved it; any solved sibling lifts it above 0."""
    if not graded:
        return -1
    return max(1, (4 * solved) // graded) if solved else 0


def map_rows(run_id: int, found: SolveMap) -> tuple[MapRow, ...]:
    """Return rows in the map's order; columns are the iterations shown."""
    left = {iteration: CELL_WIDTH * x for x, iteration in enumerate(found.iterations)}
    rows = []
    for key, name in found.tasks:
        cells = tuple(
            MapCell(i, left[i], level_of(solved, graded), solved, graded, group_url(run_id, "train", i, key))
            for i, (solved, graded) in sorted(found.cells[key].items())
        )
        rows.append(MapRow(key, name, cells, sum(c.solved for c in cells), sum(c.graded for c in cells)))
    return tuple(rows)
