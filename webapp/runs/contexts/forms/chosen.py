"""Trajectories chosen by a fine-tuning run's query, shown before the run is started."""

from __future__ import annotations

from dataclasses import dataclass

from engine.config.run import FineTuneRun
from engine.errors import ConfigError
from webapp.rollouts.selectors import learning
from webapp.rollouts.selectors.learning import Chosen
from webapp.runs.services.drafts import Draft

_MAX_RUNS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenView:
    """Counts of the chosen trajectories."""

    trajectories: int
    found: Chosen
    left_out: tuple[tuple[str, int], ...]
    """Reason and number of the trajectories that pass the filters and are not used."""
    runs: tuple[tuple[int, int], ...]
    """Runs with the most chosen trajectories, and their number."""
    more_runs: int


def build_chosen(draft: Draft) -> ChosenView | None:
    """Return the trajectories that a draft's query chooses; None for other kinds and invalid drafts."""
    if "trajectories" not in draft.original:
        return None
    try:
        config = draft.resolved()
    except ConfigError:
        return None
    if not isinstance(config, FineTuneRun):
        return None
    chosen = learning.choose(config.trajectories, seed=config.seed)
    reasons = (
        ("same patch as another of the task", chosen.duplicates),
        ("beyond the maximum per task", chosen.over_cap),
        ("beyond the limit", chosen.over_limit),
    )
    runs = sorted(chosen.runs, key=lambda run: -run[1])
    return ChosenView(
        trajectories=len(chosen.ids),
        found=chosen,
        left_out=tuple((reason, count) for reason, count in reasons if count),
        runs=tuple(runs[:_MAX_RUNS]),
        more_runs=max(0, len(runs) - _MAX_RUNS),
    )
