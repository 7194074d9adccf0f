"""Counterfactual advantages and masks of a group under other settings of the objective."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from engine.algorithms.advantages import Member
from engine.algorithms.what_if import Counterfactual, what_if
from engine.config.learning.algorithm import AlgorithmConfig
from engine.config.run import TrainRun, parse_run_config
from engine.errors import ConfigError
from webapp.rollouts.models.trajectories import Trajectory
from webapp.rollouts.selectors.outcomes import iteration_outcomes
from webapp.runs.models.runs import Run

OFFERED = ("preset", "baseline", "std_normalisation", "filtered_baseline", "zero_advantage_groups")
"""Settings that the page offers; the API accepts every setting."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A setting with its alternatives; ``value`` is empty for the run's own value."""

    name: str
    value: str
    choices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """A trajectory with its actual and its counterfactual advantage and mask."""

    trajectory: Trajectory
    member: Member

    @property
    def changed(self) -> bool:
        """Return whether the counterfactual advantage or mask differs."""
        return (self.trajectory.advantage, self.trajectory.loss_mask) != (
            self.member.advantage,
            self.member.loss_mask,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """Context of the panel; no rows until a setting is chosen."""

    choices: tuple[Choice, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    error: str


def counterfactual(
    run: Run, *, phase: str, iteration: int, task_key: str, settings: Mapping[str, Any]
) -> Counterfactual | None:
    """Recompute a stored group's advantages under other settings; None if there is no such group.

    Raises:
        ConfigError: an unknown setting or value, or a run that has no objective.
    """
    config = parse_run_config(run.config)
    if not isinstance(config, TrainRun):
        raise ConfigError(f"run {run.pk} is of kind {run.kind}; only training runs have an objective")
    groups = iteration_outcomes(run.pk, phase=phase, iteration=iteration)
    group = groups.pop(task_key, None)
    if group is None:
        return None
    return what_if(
        group,
        settings,
        base=config.algorithm,
        max_context=config.agent.max_context,
        others=list(groups.values()),
    )


def offered_settings(params: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that a page's form selected."""
    return {name: params[name] for name in OFFERED if params.get(name)}


def offered_choices(settings: Mapping[str, str]) -> tuple[Choice, ...]:
    """Return the fields of a page's form."""
    return tuple(
        Choice(name, settings.get(name, ""), get_args(AlgorithmConfig.model_fields[name].annotation))
        for name in OFFERED
    )


def build_what_if(
    run: Run, trajectories: list[Trajectory], *, iteration: int, task_key: str, params: Mapping[str, str]
) -> WhatIf:
    """Build the context of the panel on a training group's page."""
    settings = offered_settings(params)
    choices = offered_choices(settings)
    if not settings:
        return WhatIf(choices=choices, rows=(), notes=(), error="")
    try:
        result = counterfactual(run, phase="train", iteration=iteration, task_key=task_key, settings=settings)
    except ConfigError as error:
        return WhatIf(choices=choices, rows=(), notes=(), error=str(error))
    members = {member.index: member for member in result.members} if result else {}
    rows = tuple(Row(t, members[t.index]) for t in trajectories if t.index in members)
    return WhatIf(choices=choices, rows=rows, notes=result.notes if result else (), error="")
