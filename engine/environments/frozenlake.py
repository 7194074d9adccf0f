"""FrozenLake, a small multi-turn environment without sandboxes that grades itself.

The rules are those of rLLM and RAGEN: the lake is drawn as text after every move, and a turn without a
readable call is lost. A hole ends the rollout. The reward is 1 at the goal, else 0. ``Lake`` is the world
alone, without tasks or rollouts.
"""

from __future__ import annotations

import random

from engine.environments.base import EnvironmentStep
from engine.environments.frozenlake_maps import (
    DIRECTIONS,
    GOAL,
    HOLE,
    ICE,
    PLAYER,
    Square,
    positions,
    squares,
)
from engine.tools import ObservationStyle
from engine.tools.schemas import LAKE_TOOLS, Tools
from engine.types import Grade, TaskRow, ToolCall, Verdict

_DROWNED, _ARRIVED = "X", "√"
_SIDEWAYS = {
    "up": ("left", "right"),
    "down": ("left", "right"),
    "left": ("up", "down"),
    "right": ("up", "down"),
}
_STEP_DEADLINE_S = 10.0


class Lake:
    """A player on a map.

    Args:
        grid: map in the format of ``engine.environments.frozenlake_maps``.
        slip_probability: probability that a move turns by a right angle, to either side equally.
        seed: seed of the slips.
    """

    def __init__(self, grid: str, *, slip_probability: float, seed: int) -> None:
        field = squares(grid)
        self.player: Square = next(square for square, symbol in field.items() if symbol == PLAYER)
        self.goal: Square = next(square for square, symbol in field.items() if symbol == GOAL)
        self.moves = 0
        self._field = {square: ICE if symbol == PLAYER else symbol for square, symbol in field.items()}
        self._slip_probability = slip_probability
        self._rng = random.Random(seed)

    @property
    def arrived(self) -> bool:
        """Return whether the player is on the goal."""
        return self.player == self.goal

    @property
    def drowned(self) -> bool:
        """Return whether the player fell into a hole."""
        return self._field[self.player] == HOLE

    def move(self, direction: str) -> str:
        """Move one square, or stay at the edge; return the direction actually taken."""
        if self._rng.random() < self._slip_probability:
            direction = self._rng.choice(_SIDEWAYS[direction])
        down, right = DIRECTIONS[direction]
        target = (self.player[0] + down, self.player[1] + right)
        if target in self._field:
            self.player = target
        self.moves += 1
        return direction

    def contains(self, square: Square) -> bool:
        """Return whether the square is part of the lake."""
        return square in self._field

    def draw(self) -> str:
        """Draw the current lake: ``X`` is a player in a hole, ``√`` one on the goal."""
        player_symbol = _ARRIVED if self.arrived else _DROWNED if self.drowned else PLAYER
        symbols = {**self._field, self.player: player_symbol}
        size = max(row for row, _ in symbols) + 1
        return "\n".join("".join(symbols[row, column] for column in range(size)) for row in range(size))


class FrozenLakeEnvironment:
    """Implements ``engine.environments.base.Environment`` for one rollout on one map.

    Args:
        row: the task; its metadata holds the map.
        style: ``compact`` shows lake and positions, ``full`` the lake and the effect of the move.
        seed: seed of the slips.
    """

    tools: Tools = LAKE_TOOLS
    step_deadline_s = _STEP_DEADLINE_S
    grades_in_place = False
    queue_seconds = 0.0
    startup = None

    def __init__(self, row: TaskRow, *, style: ObservationStyle, seed: int) -> None:
        self._row = row
        self._style = style
        self._seed = seed
        self.lake = self._fresh()

    async def reset(self) -> str:
        """Put the player on the start; return an empty sandbox id."""
        self.lake = self._fresh()
        return ""

    async def step(self, call: ToolCall, *, timeout_s: float) -> EnvironmentStep:  # noqa: ARG002
        """Move; reaching the goal and falling into a hole end the rollout."""
        lake = self.lake
        requested = str(call.arguments["direction"])
        taken = lake.move(requested)
        if lake.arrived or lake.drowned:
            return EnvironmentStep(observation=f"{lake.draw()}\n{self._ending()}", done=True)
        if self._style == "compact":
            return EnvironmentStep(observation=f"{lake.draw()}\n{positions(lake.player, lake.goal)}")
        message = f"You moved {taken}." if taken == requested else f"You slipped and moved {taken}."
        return EnvironmentStep(observation=f"{message} The lake:\n\n{lake.draw()}")

    async def patch(self) -> str:
        """Return an empty patch."""
        return ""

    async def close(self) -> None:
        """Do nothing: there is no resource to free."""

    async def grade(self, patch: str) -> Grade:  # noqa: ARG002
        """Return ``passed`` with reward 1 on the goal, else ``failed`` with 0."""
        arrived = self.lake.arrived
        return Grade(
            verdict=Verdict.PASSED if arrived else Verdict.FAILED,
            reward=float(arrived),
            detail=self._ending(),
        )

    def _fresh(self) -> Lake:
        metadata = self._row.task.metadata
        slip = float(metadata["slip_probability"])
        return Lake(str(metadata["grid"]), slip_probability=slip, seed=self._seed)

    def _ending(self) -> str:
        lake = self.lake
        moves = f"{lake.moves} move{'' if lake.moves == 1 else 's'}"
        if lake.arrived:
            return f"You reached the goal in {moves}; the shortest way takes {self._shortest()}."
        if lake.drowned:
            return f"You fell into a hole after {moves}."
        return f"You were still on the way after {moves}; the shortest way takes {self._shortest()}."

    def _shortest(self) -> int:
        return int(self._row.answer.metadata["shortest_path"])
