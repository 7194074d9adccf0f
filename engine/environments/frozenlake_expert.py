"""Expert player of FrozenLake for warm-start episodes (``engine.rollout.expert_episodes``).

A policy that never reaches the goal gives reinforcement learning no signal; a policy taught by a
perfect expert has nothing left to learn. The expert follows a shortest path or, with probability
``expert_noise``, moves in a random direction. A thought lists a random number of the next moves.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from engine.config.environment import FrozenLakeConfig
from engine.environments.frozenlake import Lake
from engine.environments.frozenlake_maps import (
    DIRECTIONS,
    draw_grid,
    frozenlake_rows,
    goal_distances,
    lake_row,
)
from engine.tools.rendering import render_response
from engine.tools.schemas import MOVE
from engine.types import TaskRow, ToolCall

_LONGEST_THOUGHT = 5


class LakeExpert:
    """Player with full knowledge of the map.

    Args:
        lake: the map.
        noise: probability that a move is in a random direction instead of towards the goal.
        rng: randomness of the noise and of the length of thoughts.
    """

    def __init__(self, lake: Lake, *, noise: float, rng: random.Random) -> None:
        self._lake = lake
        self._distances = goal_distances(lake.draw())
        self._noise = noise
        self._rng = rng

    def respond(self) -> str:
        """Return the next response: a thought and a move."""
        random_move = self._rng.random() < self._noise
        first = self._rng.choice(list(DIRECTIONS)) if random_move else ""
        plan = self._plan(first)
        thought = " ".join(plan[: self._rng.randint(0, _LONGEST_THOUGHT)])
        call = ToolCall(name=MOVE.name, arguments={"direction": plan[0]})
        return render_response(thought, call, "words")

    def _plan(self, first: str) -> list[str]:
        """Return the moves to the goal, starting with ``first`` if given; ends early in a hole."""
        plan, square = [], self._lake.player
        while first or self._distances.get(square, 0):
            direction = first or self._towards_goal(square)
            plan.append(direction)
            target = (square[0] + DIRECTIONS[direction][0], square[1] + DIRECTIONS[direction][1])
            square, first = target if self._lake.contains(target) else square, ""
        return plan

    def _towards_goal(self, square: tuple[int, int]) -> str:
        next_distance = self._distances[square] - 1
        directions = [
            direction
            for direction, (down, right) in DIRECTIONS.items()
            if self._distances.get((square[0] + down, square[1] + right)) == next_distance
        ]
        return self._rng.choice(directions)


def expert_rows(config: FrozenLakeConfig, rng: random.Random) -> Iterator[TaskRow]:
    """Yield tasks for the expert without end; no map is a held-out one."""
    heldout = {str(row.task.metadata["grid"]) for row in frozenlake_rows(config) if row.split == "heldout"}
    while True:
        grid = draw_grid(config, rng)
        if grid not in heldout:
            yield lake_row(config, grid, "warm_start", 0)
