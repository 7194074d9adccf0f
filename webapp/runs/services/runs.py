"""Creation of runs and requests to change their state.

A request sets ``desired`` or ``state`` and sends a task on commit; the engine acknowledges by event.
Every function uses a conditional update, so repeated requests take effect once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction

from engine.config.environment import generates_tasks
from engine.errors import ConfigError, Problem
from engine.planning.contexts import long_contexts
from engine.types import RunKind, RunState
from webapp.core.dispatch import TaskName, send_on_commit
from webapp.core.services import audit, notifications
from webapp.datasets.models.datasets import Dataset
from webapp.datasets.services import difficulty
from webapp.endpoints.services import places
from webapp.experiments.models import Experiment
from webapp.rollouts.selectors import scores
from webapp.runs.models.runs import Run
from webapp.runs.selectors.budgets import spent_budget
from webapp.runs.selectors.results import existing_runs
from webapp.runs.services import drafts, learning, states


@transaction.atomic
def create(
    *,
    recipe: str,
    overrides: Mapping[str, Any] | None = None,
    actor: User | None = None,
    experiment: Experiment | None = None,
    arm: str = "",
) -> Run:
    """Create a draft from a recipe with dotted overrides (``{"trainer.iterations": 5}``).

    Settings without an override may follow from dataset and model (see ``drafts``). ``arm`` is the arm of
    the experiment that the run belongs to.

    Raises:
        ConfigError: unknown recipe, unknown or invalid setting, or a value that is not allowed.
    """
    config = drafts.draft(recipe=recipe, overrides=overrides).resolved().model_dump(mode="json")
    return _save(config=config, overrides=overrides, actor=actor, experiment=experiment, arm=arm, parent=None)


@transaction.atomic
def clone(
    *,
    run: Run,
    overrides: Mapping[str, Any] | None = None,
    actor: User | None = None,
    experiment: Experiment | None = None,
    arm: str = "",
) -> Run:
    """Create a draft with another run's configuration and some changes. Raises ConfigError.

    The draft belongs to ``experiment``; without one to the experiment of the run, but to none of its arms.
    """
    config = drafts.draft(parent=run, overrides=overrides).resolved().model_dump(mode="json")
    experiment = experiment or run.experiment
    return _save(config=config, overrides=overrides, actor=actor, experiment=experiment, arm=arm, parent=run)


def _save(
    *,
    config: dict[str, Any],
    overrides: Mapping[str, Any] | None,
    actor: User | None,
    experiment: Experiment | None,
    arm: str,
    parent: Run | None,
) -> Run:
    config = places.checked(config).model_dump(mode="json")
    name = dataset_name(config)
    run = Run.objects.create(
        kind=config["kind"],
        name=config["name"],
        recipe=config["recipe"],
        config=config,
        experiment=experiment,
        arm=arm,
        dataset=Dataset.objects.filter(name=name).first() if name else None,
        parent=parent,
        created_by=actor,
        total_iterations=config.get("trainer", {}).get("iterations", 0),
    )
    changes: dict[str, Any] = {"recipe": run.recipe, "overrides": dict(overrides or {})}
    if parent is not None:
        changes["cloned_from"] = parent.pk
    audit.record(actor=actor, action="run.create", run_id=run.pk, changes=changes)
    notifications.run_changed(run.pk, 0)
    return run


def dataset_name(config: Mapping[str, Any]) -> str | None:
    """Return the name of a configuration's dataset; None for kinds without one."""
    if config.get("kind") == RunKind.REGRADE:
        return config["regrade"]["dataset"] or None
    if config.get("source") == "hardening":
        return str(config["curation"]["dataset"])
    section = config.get("dataset")
    return section["name"] if isinstance(section, dict) else None


@transaction.atomic
def start(*, run: Run, actor: User | None = None) -> None:
    """Queue a draft.

    Raises:
        ConfigError: its dataset or a source run does not exist, the solve rates that select its tasks cannot
            be exported, its experiment's budget is spent, its query chooses no trajectory, its
            conversations may exceed the model's context,
            or a value is not allowed.
        IllegalTransitionError: the run is not a draft.
    """
    places.checked(run.config)
    _check_budget(run)
    _check_dataset(run)
    _check_sources(run)
    if problems := long_contexts(run.config, home=Path(settings.TRAINYARD_HOME)):
        raise ConfigError(*problems)
    difficulty.measure_for(run=run)
    learning.check(run.config)
    states.require(
        run_id=run.pk, to=RunState.QUEUED, only_from=RunState.DRAFT, archived_at=None, archived_by=None
    )
    send_on_commit(TaskName.LAUNCH_RUN, run.pk)
    _done(run, actor, "run.start")


def _check_budget(run: Run) -> None:
    if reason := spent_budget(run.experiment):
        raise ConfigError(reason)


def _check_dataset(run: Run) -> None:
    if generates_tasks(run.config):
        return
    evaluated = run.config.get("evaluation", {}).get("dataset")
    owns = {RunKind.REGRADE: "regrade.dataset", RunKind.CURATE: "curation.dataset"}
    own = owns.get(RunKind(run.kind), "dataset.name")
    for name, setting in ((dataset_name(run.config), own), (evaluated, "evaluation.dataset")):
        if name is None or Dataset.objects.filter(name=name).exists():
            continue
        if not (Path(settings.TRAINYARD_HOME) / "datasets" / name).is_dir():
            raise ConfigError(
                f"the dataset '{name}' is not here: make it with a curate run (`trainyard run launch "
                f"quickstart-dataset` makes 'quickstart'), or choose another one with {setting}"
            )


_SOURCES = MappingProxyType(
    {
        "verifier": ("runs", "tests"),
        "judgements": ("on_policy", "off_policy"),
        "regrade": ("runs",),
        "curation": ("alternatives_of",),
    },
)
"""Settings that name runs whose trajectories are read, by section."""


def _check_sources(run: Run) -> None:
    """Raise ConfigError if a run names no source run where it needs one, or one that cannot be read."""
    folder = Path(settings.TRAINYARD_HOME) / "runs"
    for section, fields in _SOURCES.items():
        if section not in run.config:
            continue
        named = [(f"{section}.{field}", run.config[section].get(field, ())) for field in fields]
        # A verifier must have runs to score; runs with tests or with alternatives are optional.
        needed = {"verifier": named[:1], "curation": []}.get(section, named)
        if needed and not any(names for _, names in needed):
            raise ConfigError(Problem("no run is named: name finished runs", needed[0][0]))
        problems = [
            Problem(f"there is no run '{name}' with trajectories", setting)
            for setting, names in named
            for name in names
            if not (folder / name).is_dir()
        ]
        if section == "judgements":
            problems += _live_sources(named)
        if problems:
            raise ConfigError(*problems)


def _live_sources(named: Sequence[tuple[str, Sequence[str]]]) -> list[Problem]:
    """Return a problem for each run that is live: a judge would learn from a part of its rollouts."""
    numbers = [run.pk for run in existing_runs([name for _, names in named for name in names])]
    live_runs = Run.objects.filter(pk__in=numbers, state__in=states.LIVE)
    live = set(map(str, live_runs.values_list("pk", flat=True)))
    return [
        Problem(f"run {name} has not ended: wait for it or stop it", setting)
        for setting, names in named
        for name in names
        if name in live
    ]


@transaction.atomic
def stop(*, run: Run, actor: User | None = None) -> None:
    """Stop a run: at once if no process was started, else gracefully, and by force after a timeout.

    Raises IllegalTransitionError when it has ended already.
    """
    for waiting in (RunState.DRAFT, RunState.QUEUED):
        if states.move(
            run_id=run.pk, to=RunState.STOPPED, only_from=waiting, reason="stopped before it began"
        ):
            return _done(run, actor, "run.stop")
    states.require(run_id=run.pk, to=RunState.STOPPING, desired="stop")
    send_on_commit(TaskName.STOP_RUN, run.pk)
    return _done(run, actor, "run.stop")


@transaction.atomic
def pause(*, run: Run, actor: User | None = None) -> None:
    """Ask a run to pause after the rollouts in flight. Raises IllegalTransitionError."""
    live = [RunState.STARTING.value, RunState.RUNNING.value]
    if not Run.objects.filter(pk=run.pk, state__in=live).update(desired="pause"):
        raise states.refusal(run_id=run.pk, wanted=RunState.PAUSED)
    _done(run, actor, "run.pause")


@transaction.atomic
def resume(*, run: Run, actor: User | None = None) -> None:
    """Resume a paused run, or queue a failed or stopped one to continue from its last checkpoint.

    A verifier's run or regrading that has succeeded with some results missing is queued to retry these.

    Raises:
        ConfigError: its dataset does not exist, its experiment's budget is spent, or a value is no longer
            allowed.
        IllegalTransitionError: the run is not paused, failed or stopped, and lacks no results, or it is
            being deleted.
    """
    live = [RunState.STARTING.value, RunState.RUNNING.value, RunState.PAUSED.value]
    if Run.objects.filter(pk=run.pk, state__in=live, desired="pause").update(desired="run"):
        return _done(run, actor, "run.resume")
    places.checked(run.config)
    _check_budget(run)
    _check_dataset(run)
    retried = (RunState.SUCCEEDED,) if scores.can_retry(run) else ()
    for ended in (RunState.FAILED, RunState.STOPPED, *retried):
        if states.move(
            run_id=run.pk, to=RunState.QUEUED, only_from=ended, reason="", reason_detail="", summary={},
            finished_at=None, desired="run", archived_at=None, archived_by=None,
            acknowledged_at=None, acknowledged_by=None,
        ):  # fmt: skip
            send_on_commit(TaskName.LAUNCH_RUN, run.pk)
            return _done(run, actor, "run.resume")
    raise states.refusal(run_id=run.pk, wanted=RunState.RUNNING)


def _done(run: Run, actor: User | None, action: str, changes: Mapping[str, Any] | None = None) -> None:
    audit.record_change(actor=actor, action=action, run=run, changes=changes)
    run.refresh_from_db()
    notifications.run_changed(run.pk, run.last_seq)
