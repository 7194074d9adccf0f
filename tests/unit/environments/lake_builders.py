"""Small lakes, rows of given maps, and a FrozenLake run that takes seconds."""

from __future__ import annotations

from typing import Any

from engine.config.environment import FrozenLakeConfig
from engine.config.recipes import resolve
from engine.config.recipes.frozenlake import AGENT
from engine.config.run import TrainRun
from engine.environments.frozenlake_maps import lake_row
from engine.types import TaskRow

# Down twice, right once; right at once is a hole.
MAP = "PO_\n___\n_G_"
LAKE: dict[str, Any] = {
    "size": 2,
    "min_path": 1,
    "max_path": 2,
    "train_maps": 6,
    "heldout_maps": 3,
    "expert_noise": 0.2,
    "warm_start_steps": 40,
    "warm_start_trajectories": 8,
}
"""A lake that even a hardly taught policy sometimes crosses."""
SMALL: dict[str, Any] = {
    **{f"environment.{name}": value for name, value in LAKE.items()},
    "trainer.iterations": 2,
    "trainer.tasks_per_iteration": 2,
    "trainer.checkpoint_every": 1,
    "rollout.group_size": 4,
    "rollout.max_concurrent": 1,
    "evaluation.samples": 6,
    "evaluation.every": None,
}
"""One rollout at a time: only then are a batch's last bits the same whatever else is sampled."""


def row_of(grid: str = MAP, *, slip_probability: float = 0.0) -> TaskRow:
    config = FrozenLakeConfig(size=len(grid.split("\n")), slip_probability=slip_probability)
    return lake_row(config, grid, "train", 0)


def small_run(**changes: Any) -> TrainRun:
    config = resolve("frozenlake", {**SMALL, **changes})
    assert isinstance(config, TrainRun)
    return config


__all__ = ["AGENT", "LAKE", "MAP", "SMALL", "row_of", "small_run"]
