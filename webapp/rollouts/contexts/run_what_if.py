"""Totals of a run's updates, or of one, under another objective."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.algorithms.what_if import UpdateSignal, update_signal
from engine.config.learning.algorithm import AlgorithmConfig, parse_algorithm
from engine.config.run import TrainRun, parse_run_config
from engine.errors import ConfigError
from webapp.core.contexts.frame import Crumb, run_crumbs
from webapp.core.contexts.numbers import whole
from webapp.datasets.models.datasets import Task
from webapp.rollouts.contexts.what_if import Choice, offered_choices, offered_settings
from webapp.rollouts.selectors.outcomes import update_groups
from webapp.runs.models.runs import Run

MOST_TASKS = 50
"""Tasks that are listed: those with the largest share of the gradient under either objective."""


@dataclass(slots=True)
class Totals:
    """Sums over updates under one objective."""

    groups: int = 0
    uniform: int = 0
    trajectories: int = 0
    tokens: int = 0
    by_task: dict[str, float] = field(default_factory=dict)
    """Task key → sum over updates of its share of the update's gradient."""

    def add(self, task_keys: list[str], signal: UpdateSignal) -> None:
        """Add an update."""
        self.groups += signal.groups
        self.uniform += signal.uniform
        self.trajectories += signal.trajectories
        self.tokens += signal.tokens
        total = sum(signal.weights)
        for task_key, weight in zip(task_keys, signal.weights, strict=True):
            self.by_task[task_key] = self.by_task.get(task_key, 0.0) + (weight / total if total else 0.0)

    def shares(self) -> dict[str, float]:
        """Return task key → share of the gradient, the updates counting equally."""
        total = sum(self.by_task.values())
        return {task_key: weight / total if total else 0.0 for task_key, weight in self.by_task.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdatesWhatIf:
    """A run's updates under its own objective and another one."""

    updates: int
    algorithm: AlgorithmConfig
    """The other objective; the run's own without settings."""
    own: Totals
    other: Totals


@dataclass(frozen=True, slots=True)
class TaskShare:
    """One task's share of the gradient under both objectives."""

    name: str
    own: float
    other: float

    @property
    def change(self) -> float:
        """Return the difference."""
        return self.other - self.own


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWhatIfContext:
    """Context of the page."""

    section: str
    crumbs: tuple[Crumb, ...]
    run: Run
    iteration: int | None
    """Iteration of the one update; None for all."""
    choices: tuple[Choice, ...]
    changed: bool
    """Whether a setting was selected."""
    result: UpdatesWhatIf | None
    tasks: tuple[TaskShare, ...]
    num_tasks: int
    error: str


def updates_what_if(run: Run, settings: Mapping[str, Any], *, iteration: int | None = None) -> UpdatesWhatIf:
    """Recompute what stored updates trained on under other settings of ``algorithm``.

    Args:
        run: a training run.
        settings: settings that differ from the run's, by name.
        iteration: iteration of one update; None takes all.

    Raises:
        ConfigError: an unknown setting or value, or a run that has no objective.
    """
    config = parse_run_config(run.config)
    if not isinstance(config, TrainRun):
        raise ConfigError(f"run {run.pk} is of kind {run.kind}; only training runs have an objective")
    algorithm = parse_algorithm(dict(settings), base=config.algorithm)
    own, updates = Totals(), 0
    other = own if algorithm == config.algorithm else Totals()
    objectives = [(own, config.algorithm)] + ([(other, algorithm)] if other is not own else [])
    is_sync = config.schedule.mode == "sync"
    for update in update_groups(run.pk, iteration=iteration, is_sync=is_sync):
        updates += 1
        for totals, objective in objectives:
            signal = update_signal(
                update.outcomes, update.num_tokens, objective, max_context=config.agent.max_context
            )
            totals.add(update.task_keys, signal)
    return UpdatesWhatIf(updates=updates, algorithm=algorithm, own=own, other=other)


def build_run_what_if(run: Run, params: Mapping[str, str]) -> RunWhatIfContext:
    """Build the context of the page; ``iteration`` restricts it to one update."""
    iteration = whole(params.get("iteration", ""))
    settings = offered_settings(params)
    result, error = None, ""
    try:
        result = updates_what_if(run, settings, iteration=iteration)
    except ConfigError as problem:
        error = str(problem)
    tasks = _tasks(result) if result else ()
    return RunWhatIfContext(
        section="runs",
        crumbs=run_crumbs(run, Crumb("what if")),
        run=run,
        iteration=iteration,
        choices=offered_choices(settings),
        changed=bool(settings),
        result=result,
        tasks=tasks[:MOST_TASKS],
        num_tasks=len(tasks),
        error=error,
    )


def _tasks(result: UpdatesWhatIf) -> tuple[TaskShare, ...]:
    own, other = result.own.shares(), result.other.shares()
    keys = sorted(own, key=lambda key: (-max(own[key], other[key]), key))
    names = dict(Task.objects.filter(key__in=keys[:MOST_TASKS]).values_list("key", "instance_id"))
    return tuple(TaskShare(names.get(key, key), own[key], other[key]) for key in keys)
