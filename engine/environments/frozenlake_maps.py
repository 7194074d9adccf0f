"""FrozenLake maps as tasks: drawn from a seed, solvable within a number of moves, with held-out maps.

A map is a square of ``P`` (start), ``_`` (ice), ``O`` (hole) and ``G`` (goal), rows on lines. Start and goal
are anywhere; a breadth-first search decides exactly whether a map is solvable.
The same settings give the same tasks on every machine.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from engine.config.environment import FrozenLakeConfig
from engine.datasets.store import with_content_id
from engine.errors import DatasetError
from engine.types import GradeRule, Task, TaskAnswer, TaskRow

PLAYER, ICE, HOLE, GOAL = "P", "_", "O", "G"
DIRECTIONS: Mapping[str, tuple[int, int]] = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
"""Word → change of row and column."""

_MAX_DRAWS = 20_000
"""Maps drawn for one task before the settings are refused as impossible."""

Square = tuple[int, int]


def squares(grid: str) -> dict[Square, str]:
    """Return the map as (row, column) → symbol."""
    rows = grid.split("\n")
    return {(row, column): symbol for row, line in enumerate(rows) for column, symbol in enumerate(line)}


def positions(player: Square, goal: Square) -> str:
    """Return row and column of the player and of the goal, from 0, as RAGEN adds them to the map."""
    return f"{PLAYER} {player[0]},{player[1]} {GOAL} {goal[0]},{goal[1]}"


def goal_distances(grid: str) -> dict[Square, int]:
    """Return the fewest moves to the goal from every square that can reach it, the goal included.

    Raises:
        ValueError: the grid has no goal.
    """
    field = squares(grid)
    goal = next((square for square, symbol in field.items() if symbol == GOAL), None)
    if goal is None:
        raise ValueError("the grid has no goal")
    distances, queue = {goal: 0}, deque([goal])
    while queue:
        row, column = queue.popleft()
        for down, right in DIRECTIONS.values():
            neighbour = (row + down, column + right)
            if field.get(neighbour, HOLE) != HOLE and neighbour not in distances:
                distances[neighbour] = distances[row, column] + 1
                queue.append(neighbour)
    return distances


def shortest_path(grid: str) -> int | None:
    """Return the fewest moves from start to goal; None when there is no path."""
    start = next(square for square, symbol in squares(grid).items() if symbol == PLAYER)
    return goal_distances(grid).get(start)


def draw_grid(config: FrozenLakeConfig, rng: random.Random) -> str:
    """Draw a random solvable map.

    Raises:
        DatasetError: no map that fits the settings was drawn within the limit.
    """
    size = config.size
    for _ in range(_MAX_DRAWS):
        cells = [ICE if rng.random() < config.frozen_probability else HOLE for _ in range(size * size)]
        start, goal = rng.sample(range(size * size), 2)
        cells[start], cells[goal] = PLAYER, GOAL
        grid = "\n".join("".join(cells[row : row + size]) for row in range(0, size * size, size))
        length = shortest_path(grid)
        if length is not None and config.min_path <= length <= config.max_path:
            return grid
    raise DatasetError(
        f"no fitting {size}x{size} map in {_MAX_DRAWS} draws: raise environment.frozen_probability or widen "
        "environment.min_path … max_path"
    )


def frozenlake_rows(config: FrozenLakeConfig) -> list[TaskRow]:
    """Return all tasks: ``train_maps`` of split ``train``, then ``heldout_maps`` of ``heldout``.

    Each split has its own seed, and no map occurs twice.

    Raises:
        DatasetError: the settings allow too few different maps.
    """
    seen: set[str] = set()
    rows = []
    for split, count in (("train", config.train_maps), ("heldout", config.heldout_maps)):
        maps = _different_grids(config, split, seen)
        for number in range(count):
            try:
                grid = next(maps)
            except StopIteration:
                raise DatasetError(
                    f"only {number} different maps for the split '{split}', not {count}: lower "
                    f"environment.{split}_maps or raise environment.size"
                ) from None
            rows.append(lake_row(config, grid, split, number))
    return rows


def frozenlake_provenance(config: FrozenLakeConfig) -> dict[str, Any]:
    """Return the provenance of the generated dataset."""
    return {"generator": "engine.environments.frozenlake_maps", "settings": config.model_dump(mode="json")}


def _different_grids(config: FrozenLakeConfig, split: str, seen: set[str]) -> Iterator[str]:
    """Yield unseen maps; ends when nearly all possible maps were drawn."""
    rng = random.Random(f"frozenlake/{config.map_seed}/{split}")
    duplicates = 0
    while duplicates < _MAX_DRAWS:
        grid = draw_grid(config, rng)
        duplicates = duplicates + 1 if grid in seen else 0
        if grid not in seen:
            seen.add(grid)
            yield grid


def lake_row(config: FrozenLakeConfig, grid: str, split: str, number: int) -> TaskRow:
    """Return the task of a solvable map."""
    length = shortest_path(grid)
    places = {symbol: square for square, symbol in squares(grid).items()}
    task = Task(
        id="",
        instance_id=f"lake-{split}-{number}",
        repo="frozenlake",
        base_commit="",
        problem_statement=statement(grid, config.slip_probability),
        image="",
        workdir="",
        difficulty={"shortest_path": float(length or 0), "holes": float(grid.count(HOLE))},
        metadata={
            "grid": grid,
            "positions": positions(places[PLAYER], places[GOAL]),
            "slip_probability": config.slip_probability,
        },
    )
    answer = TaskAnswer(gold_patch="", grade_rule=GradeRule.GOAL, metadata={"shortest_path": length})
    return with_content_id(TaskRow(task=task, answer=answer, split=split))


def statement(grid: str, slip_probability: float) -> str:
    """Return the problem statement of a map."""
    ice = (
        "The ice is firm: you move where you want to."
        if slip_probability == 0
        else f"The ice is slippery: with a chance of {slip_probability:.0%} a move goes off at a right angle."
    )
    return (
        "Walk over the frozen lake to the goal without falling into a hole. Every turn moves you one square; "
        f"the edge of the lake holds you back. {ice}\n\n"
        f"{PLAYER} is you, {ICE} ice, {HOLE} a hole, {GOAL} the goal:\n\n{grid}"
    )
