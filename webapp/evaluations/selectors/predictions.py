"""A run's patches as predictions for the official harness, and its verdicts as the harness's run report."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Any

from django.db.models import QuerySet

from engine.events.harness import OUTCOMES, Prediction, run_report
from engine.types import Verdict
from webapp.datasets.models.datasets import Task
from webapp.rollouts.models.trajectories import Trajectory
from webapp.rollouts.selectors.attempts import UNKNOWN_REPO, newest_point
from webapp.runs.models.runs import Run

_NOT_ENDED = frozenset({Verdict.TEST_TIMEOUT, Verdict.INFRA_ERROR})
"""Verdicts that the harness lists as errors: no per-instance report exists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Selection of rollouts: one for each task of one iteration of one phase."""

    phase: str
    iteration: int
    index: int = 0
    """Index among a task's siblings."""


def choose(run: Run, *, phase: str = "", iteration: int | None = None, index: int = 0) -> Choice | None:
    """Select rollouts, by default of the newest evaluation, else of the newest iteration.

    Return None if the run has no such rollouts, or if it writes tests: its patches solve no task.
    """
    if run.writes_tests:
        return None
    newest = newest_point(run, phase=phase, iteration=iteration, index=index)
    return None if newest is None else Choice(phase=newest.phase, iteration=newest.iteration, index=index)


def _rows(run: Run, choice: Choice) -> QuerySet[Trajectory]:
    return (
        Trajectory.objects.filter(run=run, phase=choice.phase, iteration=choice.iteration, index=choice.index)
        .exclude(verdict="")
        .exclude(patch="", imported_fields__fields__contains={"patch": None})  # unknown, not empty
        .order_by("task_key")
    )


def predictions(run: Run, choice: Choice) -> list[Prediction]:
    """Return a prediction per graded rollout with a known patch; without tasks lost to infrastructure."""
    rows = _rows(run, choice).values_list("task__instance_id", "task_key", "patch")
    name = f"trainyard-run-{run.pk}"
    return [
        Prediction(instance_id=instance_id or key, model_name_or_path=name, model_patch=patch)
        for instance_id, key, patch in rows
    ]


def report(run: Run, choice: Choice) -> dict[str, Any]:
    """Return the run report, ``schema_version`` 2, over the splits that the rollouts come from."""
    ids: dict[str, set[str]] = {name: set() for name in OUTCOMES}
    reasons: dict[str, str] = {}
    for instance_id, key, verdict, patch in _rows(run, choice).values_list(
        "task__instance_id", "task_key", "verdict", "patch"
    ):
        name = instance_id or key
        ids["submitted"].add(name)
        if not patch:
            ids["empty_patch"].add(name)
        elif verdict in _NOT_ENDED:
            ids["error"].add(name)
            reasons[name] = verdict
            ids["infra_failure" if verdict == Verdict.INFRA_ERROR else "ambiguous_failure"].add(name)
        else:
            ids["completed"].add(name)
            ids["resolved" if verdict == Verdict.PASSED else "unresolved"].add(name)
    known = split_instances(run, phase=choice.phase, iteration=choice.iteration)
    ids["incomplete"] = known.keys() - ids["submitted"]
    return run_report(total=len(known.keys() | ids["submitted"]), ids=ids, reasons=reasons)


def split_instances(run: Run, *, phase: str, iteration: int) -> dict[str, str]:
    """Return the repository of each instance in the dataset splits of the rollouts."""
    sources = (
        Trajectory.objects.filter(run=run, phase=phase, iteration=iteration)
        .exclude(task=None)
        .values_list("task__dataset", "task__split")
        .distinct()
    )
    instances = chain.from_iterable(
        Task.objects.filter(dataset=dataset, split=split).values_list("instance_id", "repo")
        for dataset, split in sources
    )
    return {name: repo or UNKNOWN_REPO for name, repo in instances}
