"""Stored trajectories for fine-tuning runs: checked before the launch, exported for the engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from engine.config.learning.fine_tuning import TrajectoryQuery
from engine.config.run import FineTuneRun, parse_run_config
from engine.errors import ConfigError, Problem
from engine.events.stored_trajectories import TRAJECTORIES_FILE, StoredTrajectory, write_trajectories
from webapp.rollouts.selectors import learning
from webapp.runs.services.drafts import draft

_REPORT_EVERY_S = 2.0


def query_of(config: Mapping[str, Any]) -> tuple[TrajectoryQuery, int] | None:
    """Return the query and the seed of a fine-tuning run; None for other runs."""
    if "trajectories" not in config:
        return None
    run = parse_run_config(config)
    return (run.trajectories, run.seed) if isinstance(run, FineTuneRun) else None


def query_of_recipe(recipe: str, overrides: Mapping[str, Any]) -> tuple[TrajectoryQuery, int]:
    """Return the query and the seed of a fine-tuning recipe with overrides.

    Raises:
        ConfigError: no such recipe, a wrong setting, an unknown name in the query, or a recipe that trains on
            something else.
    """
    query_and_seed = query_of(draft(recipe=recipe, overrides=overrides).resolved().model_dump(mode="json"))
    if query_and_seed is None:
        raise ConfigError(
            f"the recipe '{recipe}' does not train on stored trajectories: choose one that does (fine-tune)"
        )
    _check_names(query_and_seed[0])
    return query_and_seed


def _check_names(query: TrajectoryQuery) -> None:
    unknown = learning.unknown_names(query)
    if unknown:
        raise ConfigError(
            *(
                Problem(
                    f"no stored trajectory matches '{value}': correct or remove it",
                    f"trajectories.{name}",
                )
                for name, value in unknown
            )
        )


def check(config: Mapping[str, Any]) -> None:
    """Refuse a configuration whose query names something unknown, or chooses no trajectory.

    Raises:
        ConfigError: names every such setting.
    """
    query_and_seed = query_of(config)
    if query_and_seed is None:
        return
    query, seed = query_and_seed
    _check_names(query)
    if not learning.choose(query, seed=seed).ids:
        raise ConfigError(
            Problem(
                "the query chooses no stored trajectory: name other runs, verdicts or bounds "
                "(trainyard trajectories count shows what each query chooses)",
                "trajectories",
            )
        )


def provide(config: Mapping[str, Any], folder: Path, *, working: Callable[[], None]) -> None:
    """Write the chosen trajectories into a run's folder, once: later attempts train on the same ones.

    Args:
        config: the run's configuration.
        folder: the run's folder.
        working: called every few seconds during the export; an exception from it leaves no file.

    Raises:
        OSError: the file cannot be written.
    """
    path = folder / TRAJECTORIES_FILE
    query_and_seed = query_of(config)
    if query_and_seed is None or path.exists():
        return
    query, seed = query_and_seed
    chosen = learning.choose(query, seed=seed, working=working)
    write_trajectories(path, _reporting(learning.stored(chosen.ids), working))


def _reporting(
    trajectories: Iterable[StoredTrajectory], working: Callable[[], None]
) -> Iterator[StoredTrajectory]:
    """Yield trajectories; call ``working`` every few seconds and at the end."""
    reported = time.monotonic()
    for trajectory in trajectories:
        if time.monotonic() - reported > _REPORT_EVERY_S:
            working()
            reported = time.monotonic()
        yield trajectory
    working()
