"""Reads of experiments."""

from __future__ import annotations

import statistics
from collections.abc import Collection

from django.db.models import BigIntegerField, Count, Max, Q, QuerySet
from django.db.models.fields.json import KT
from django.db.models.functions import Cast

from webapp.experiments.models import Experiment
from webapp.runs.models.runs import Run
from webapp.runs.selectors.runs import ACTIVE_STATES, reward_series


def _counted() -> QuerySet[Experiment]:
    """Return every experiment with ``num_runs``, ``num_active`` and ``last_run_at``."""
    return Experiment.objects.select_related("created_by").annotate(
        num_runs=Count("runs"),
        num_active=Count("runs", filter=Q(runs__state__in=ACTIVE_STATES)),
        last_run_at=Max("runs__created_at"),
    )


def list_experiments() -> list[Experiment]:
    """Return every experiment, with the numbers of its runs."""
    return list(_counted().order_by("name"))


def get_experiment(experiment_id: int) -> Experiment | None:
    """Return one experiment, with the numbers of its runs."""
    return _counted().filter(pk=experiment_id).first()


def experiment_named(name: str) -> Experiment:
    """Return the experiment of this name, with the numbers of its runs. Raises Experiment.DoesNotExist."""
    experiment = _counted().filter(name=name).first()
    if experiment is None:
        raise Experiment.DoesNotExist(f"there is no experiment '{name}'")
    return experiment


def arm_runs(experiment: Experiment) -> dict[tuple[str, int], Run]:
    """Return the newest run of each arm and seed, without its configuration; archived runs are left out."""
    runs = (
        Run.objects.filter(experiment=experiment, archived_at=None)
        .exclude(arm="")
        .select_related("created_by")
        .defer("config", "funnel")
        .annotate(seed=Cast(KT("config__seed"), BigIntegerField()))
        .order_by("pk")
    )
    return {(run.arm, run.seed): run for run in runs}


def runs_in_states(experiment: Experiment, states: Collection[str]) -> list[Run]:
    """Return the runs of an experiment in some states that are not archived."""
    runs = Run.objects.filter(experiment=experiment, archived_at=None, state__in=states)
    return list(runs.select_related("created_by", "experiment").order_by("pk"))


def changeable_runs(experiment: Experiment) -> list[Run]:
    """Return the runs of an experiment that are not archived with their creators, without configuration."""
    runs = Run.objects.filter(experiment=experiment, archived_at=None).select_related("created_by")
    return list(runs.defer("config", "funnel").order_by("pk"))


LARGEST_REWARD = 1e100
"""Larger rewards do not count: their squares exceed the range of numbers."""


def rewards_at_end(run_ids: Collection[int], *, last: int = 10) -> dict[int, float]:
    """Return the mean reward of the last finished iterations of each run that has any."""
    rewards = reward_series(run_ids, last=last)
    known = {
        run_id: [value for value in values if value is not None and abs(value) <= LARGEST_REWARD]
        for run_id, values in rewards.items()
    }
    return {run_id: statistics.fmean(values) for run_id, values in known.items() if values}


def experiments_with_arms() -> list[tuple[int, str]]:
    """Return the experiments that were launched with arms as (id, name), newest first."""
    return list(Experiment.objects.exclude(design={}).order_by("-pk").values_list("pk", "name")[:200])


def evaluated_splits(run_ids: Collection[int]) -> dict[int, tuple[str, str]]:
    """Return the dataset and split that runs evaluate; empty where their configuration names none."""
    rows = Run.objects.filter(pk__in=run_ids).values_list(
        "pk", KT("config__evaluation__dataset"), KT("config__dataset__name"), KT("config__evaluation__split")
    )
    return {pk: (dataset or own or "", split or "") for pk, dataset, own, split in rows}
