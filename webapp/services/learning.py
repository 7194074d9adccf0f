"""Trajectories of runs that learn from stored ones: checked before the launch, written for the engine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.config.fine_tuning import TrajectoryQuery
from engine.config.recipes import resolve
from engine.config.run import FineTuneRun, parse_run_config
from engine.errors import ConfigError, Problem
from engine.events.stored_trajectories import TRAJECTORIES_FILE, write_trajectories
from webapp.selectors import learning


def query_of(config: Mapping[str, Any]) -> tuple[TrajectoryQuery, int] | None:
    """Return the query and the seed of a run that learns from trajectories; None for other runs."""
    if "trajectories" not in config:
        return None
    run = parse_run_config(config)
    return (run.trajectories, run.seed) if isinstance(run, FineTuneRun) else None


def query_of_recipe(recipe: str, overrides: Mapping[str, Any]) -> tuple[TrajectoryQuery, int]:
    """Return the query and the seed of a fine-tuning recipe with overrides.

    Raises:
        ConfigError: no such recipe, a wrong setting, or a recipe that trains on something else.
    """
    found = query_of(resolve(recipe, overrides).model_dump(mode="json"))
    if found is None:
        raise ConfigError(
            f"the recipe '{recipe}' does not train on stored trajectories: choose one that does (fine-tune)"
        )
    return found


def check(config: Mapping[str, Any]) -> None:
    """Refuse a configuration whose query chooses no trajectory. Raises ConfigError."""
    found = query_of(config)
    if found is not None and not learning.choose(found[0], seed=found[1]).ids:
        raise ConfigError(
            Problem(
                "the query chooses no stored trajectory: name other runs, verdicts or bounds "
                "(manage.py count_trajectories shows what each query chooses)",
                "trajectories",
            )
        )


def provide(config: Mapping[str, Any], folder: Path) -> None:
    """Write the chosen trajectories into a run's folder, once: later attempts train on the same ones.

    Raises:
        OSError: the file cannot be written.
    """
    path = folder / TRAJECTORIES_FILE
    found = query_of(config)
    if found is None or path.exists():
        return
    chosen = learning.choose(found[0], seed=found[1])
    write_trajectories(path, learning.stored(chosen.ids))
