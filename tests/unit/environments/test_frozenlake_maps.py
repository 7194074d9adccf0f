"""Maps: solvable within bounds, equal on every machine, in disjoint splits."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config.environment import FrozenLakeConfig
from engine.config.recipes import resolve
from engine.environments.frozenlake_maps import (
    DIRECTIONS,
    HOLE,
    draw_grid,
    frozenlake_rows,
    goal_distances,
    shortest_path,
    squares,
)
from engine.errors import ConfigError, DatasetError
from tests.unit.environments.lake_builders import MAP

IDS = ["2084c730da02b125", "83f45a4ad01210eb", "43c082d0762d11a1", "6c1085964f19dbb1", "bcbb1cf557ef6486"]


@st.composite
def grids(draw: st.DrawFn) -> str:
    size = draw(st.integers(2, 6))
    count = size * size
    holes = draw(st.integers(0, 2**count - 1))
    cells = ["O" if holes >> place & 1 else "_" for place in range(count)]
    start = draw(st.integers(0, count - 1))
    goal = (start + draw(st.integers(1, count - 1))) % count
    cells[start], cells[goal] = "P", "G"
    return "\n".join("".join(cells[i : i + size]) for i in range(0, count, size))


def relaxed(grid: str) -> int | None:
    """Return the fewest moves from start to goal by repeated updates of Bellman's equation."""
    field = squares(grid)
    cost = {square: 0 if symbol == "G" else 999 for square, symbol in field.items()}
    for _ in field:
        for (row, column), symbol in field.items():
            if symbol not in ("G", HOLE):
                near = [(row + d, column + r) for d, r in DIRECTIONS.values()]
                best = min((cost[n] for n in near if n in field and field[n] != HOLE), default=999)
                cost[row, column] = min(cost[row, column], best + 1)
    distance = next(cost[square] for square, symbol in field.items() if symbol == "P")
    return None if distance >= 999 else distance


@given(grids())
def test_shortest_path_solves_bellmans_equation(grid: str) -> None:
    assert shortest_path(grid) == relaxed(grid)


def test_shortest_path_follows_long_detours() -> None:
    # A depth-first search with a bound on depth can mark squares as seen on a detour and refuse this one.
    snake = "P____\nOOOO_\n_____\n_OOOO\n____G"
    assert shortest_path(snake) == 16
    assert shortest_path("PO\nOG") is None
    assert shortest_path(MAP) == 3
    assert goal_distances(MAP)[0, 0] == 3
    assert (0, 1) not in goal_distances(MAP)


@given(st.integers(3, 6), st.integers(1, 3), st.integers(0, 3), st.integers(0, 10**6))
def test_drawn_maps_are_within_their_bounds(size: int, shortest: int, more: int, seed: int) -> None:
    config = FrozenLakeConfig(size=size, min_path=shortest, max_path=shortest + more)
    grid = draw_grid(config, random.Random(seed))
    length = shortest_path(grid)
    assert length is not None
    assert shortest <= length <= shortest + more
    assert [len(line) for line in grid.split("\n")] == [size] * size
    assert grid.count("P") == grid.count("G") == 1


def test_splits_share_no_map_and_no_task() -> None:
    config = FrozenLakeConfig(train_maps=300, heldout_maps=100)
    rows = frozenlake_rows(config)
    maps = {
        split: {r.task.metadata["grid"] for r in rows if r.split == split} for split in ("train", "heldout")
    }
    assert {split: len(distinct) for split, distinct in maps.items()} == {"train": 300, "heldout": 100}
    assert maps["train"].isdisjoint(maps["heldout"])
    assert len({row.task.id for row in rows}) == len({row.task.instance_id for row in rows}) == 400
    for row in rows:
        assert row.task.metadata["grid"] in row.task.problem_statement
        assert row.answer.metadata["shortest_path"] == row.task.difficulty["shortest_path"]


def test_equal_settings_give_equal_maps_on_every_machine() -> None:
    rows = frozenlake_rows(FrozenLakeConfig(train_maps=3, heldout_maps=2))
    # Pinned ids: other maps would silently change every repeated or resumed run.
    assert [row.task.id for row in rows] == IDS
    more = frozenlake_rows(FrozenLakeConfig(train_maps=5, heldout_maps=1))
    assert [row.task.id for row in more[:3]] == IDS[:3]
    other = frozenlake_rows(FrozenLakeConfig(train_maps=3, heldout_maps=2, map_seed=1))
    assert {row.task.id for row in rows}.isdisjoint(row.task.id for row in other)


def test_settings_that_change_tasks_change_the_name_of_the_dataset() -> None:
    base = FrozenLakeConfig()
    assert base.dataset_name == "frozenlake-4x4-11c06175", "runs would no longer find their datasets"
    for changes in (
        {"size": 5}, {"slip_probability": 0.1}, {"min_path": 3}, {"map_seed": 1}, {"heldout_maps": 65},
    ):  # fmt: skip
        assert base.model_copy(update=changes).dataset_name != base.dataset_name
    assert base.model_copy(update={"expert_noise": 0.9}).dataset_name == base.dataset_name


def test_impossible_settings_are_refused_with_the_remedy() -> None:
    with pytest.raises(DatasetError, match="environment.frozen_probability"):
        draw_grid(FrozenLakeConfig(size=2, min_path=3), random.Random(0))
    # 12 placements of start and goal times 4 of holes, less 4 without a path.
    with pytest.raises(DatasetError, match="only 44 different maps for the split 'train', not 99"):
        frozenlake_rows(FrozenLakeConfig(size=2, min_path=1, train_maps=99))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"environment.max_path": 9}, "agent.max_steps only 8"),
        ({"dataset": 5}, "dataset: Input should be"),
        ({"dataset.name": "quickstart"}, "environment 'frozenlake' makes its own tasks"),
        ({"environment.slipperiness": 1}, "unknown setting"),
        ({"agent.tools": "openhands"}, "FrozenLake has tools of its own"),
        ({"agent.max_steps": 4}, "environment.max_path is 8"),
    ],
)
def test_invalid_settings_are_refused_by_the_recipe(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve("frozenlake", changes)
