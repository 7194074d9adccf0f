"""Small lakes, rows of given maps, and a FrozenLake run that takes seconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine.config.environment import FrozenLakeConfig
from engine.config.recipes import resolve
from engine.config.recipes.frozenlake import AGENT
from engine.config.run import AnyRun, TrainRun
from engine.environments.frozenlake_maps import lake_row
from engine.events.delivery.control import Control
from engine.events.delivery.spool import SpoolSink
from engine.orchestrator import execute
from engine.orchestrator.context import RunContext
from engine.types import TaskRow

# The way is down, down, right; the first square to the right is a hole.
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
"""A lake that even a barely trained policy sometimes crosses."""
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
"""One rollout at a time, so that other rollouts in a batch cannot change the last bits."""


def row_of(grid: str = MAP, *, slip_probability: float = 0.0) -> TaskRow:
    config = FrozenLakeConfig(size=len(grid.split("\n")), slip_probability=slip_probability)
    return lake_row(config, grid, "train", 0)


def small_run(**changes: Any) -> TrainRun:
    config = resolve("frozenlake", {**SMALL, **changes})
    assert isinstance(config, TrainRun)
    return config


def attempt(
    home: Path, name: str, config: AnyRun, *, epoch: int = 1, control: Control | None = None
) -> tuple[int, list[dict[str, Any]]]:
    """Perform an attempt in this process; return its exit code and the events of all attempts."""
    run_dir = home / "runs" / name
    run_dir.mkdir(parents=True, exist_ok=True)
    sink = SpoolSink(run_dir, epoch=epoch)
    run = RunContext(
        run_id=name, epoch=epoch, run_dir=run_dir, home=home, sink=sink, control=control or Control()
    )
    code = execute(config, run)
    sink.close()
    return code, [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()]


def perform(home: Path, name: str, config: AnyRun, **attempted: Any) -> list[dict[str, Any]]:
    """Perform an attempt that succeeds; return all events so far."""
    code, events = attempt(home, name, config, **attempted)
    assert code == 0, events[-1]
    return events


def of_type(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [event for event in events if event["type"] == kind]


__all__ = ["AGENT", "LAKE", "MAP", "SMALL", "attempt", "of_type", "perform", "row_of", "small_run"]
