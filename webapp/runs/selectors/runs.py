"""Reads of runs for their list, the overview and the header of one run."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta

from django.db.models import (
    Case,
    Exists,
    F,
    FloatField,
    Func,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    TextField,
    When,
)
from django.db.models.fields.json import KT, KeyTextTransform
from django.db.models.functions import Cast
from django.utils import timezone

from engine.types import RunKind, RunState
from webapp.datasets.models.datasets import Dataset
from webapp.experiments.models import Experiment
from webapp.rollouts.models.trajectories import Group
from webapp.runs.models.events import Event
from webapp.runs.models.iterations import Evaluation, Iteration
from webapp.runs.models.runs import Run, RunAttempt

ACTIVE_STATES = (RunState.STARTING, RunState.RUNNING, RunState.PAUSED, RunState.STOPPING, RunState.QUEUED)
STALE_AFTER = timedelta(seconds=30)
"""Age of the last heartbeat from which a live run is stale (the engine sends one every 2 s)."""


def with_reward(runs: QuerySet[Run]) -> QuerySet[Run]:
    """Annotate ``reward``, the mean of the newest finished iteration (None before one), and ``policy``."""
    return (
        runs.select_related("experiment", "dataset", "created_by")
        .defer("config", "funnel")
        .annotate(reward=newest_metric("reward/mean"), policy=F("config__policy"))
    )


def newest_metric(key: str) -> Subquery:
    """Return a metric of a run's newest finished iteration as an expression."""
    newest = Iteration.objects.filter(run=OuterRef("pk"), finished_at__isnull=False).order_by("-index")
    value = Cast(KeyTextTransform(key, "metrics"), FloatField())
    return Subquery(newest.annotate(value=value).values("value")[:1], output_field=FloatField())


def heldout_first(evaluations: QuerySet[Evaluation]) -> QuerySet[Evaluation]:
    """Return a run's evaluations on other than training tasks: ``heldout`` first, then the newest."""
    others = evaluations.exclude(name="train")
    return others.order_by("run_id", Case(When(name="heldout", then=0), default=1), "-iteration", "name")


def newest_heldout(run_ids: Collection[int]) -> dict[int, Evaluation]:
    """Return the newest evaluation of each run that has one, on other than training tasks."""
    rows = heldout_first(Evaluation.objects.filter(run_id__in=run_ids)).distinct("run_id")
    return {row.run_id: row for row in rows}


def first_and_newest_heldout(run_ids: Collection[int]) -> dict[int, tuple[Evaluation, Evaluation]]:
    """Return the newest evaluation of ``newest_heldout``, after the run's first one of the same name."""
    newest = newest_heldout(run_ids)
    rows = Evaluation.objects.filter(run_id__in=newest, name__in={row.name for row in newest.values()})
    rows = rows.order_by("run_id", "name", "iteration").distinct("run_id", "name")
    first = {(row.run_id, row.name): row for row in rows}
    return {run_id: (first[run_id, row.name], row) for run_id, row in newest.items()}


def active_runs(limit: int = 20) -> list[Run]:
    """Return queued and live runs, newest first."""
    return list(with_reward(Run.objects.filter(state__in=ACTIVE_STATES)).order_by("-id")[:limit])


def finished_runs(limit: int = 10) -> list[Run]:
    """Return ended runs that are not archived, last ended first."""
    ended = (RunState.SUCCEEDED, RunState.FAILED, RunState.STOPPED)
    runs = Run.objects.filter(state__in=ended, archived_at=None)
    return list(with_reward(runs).order_by("-finished_at", "-id")[:limit])


def troubled_runs(*, now: datetime, limit: int = 20) -> list[Run]:
    """Return runs that need attention: failed in the last three days, or live without a heartbeat.

    Failed runs that a person acknowledged or archived are left out.
    """
    since = now - timedelta(days=3)
    failed = Q(state=RunState.FAILED, finished_at__gte=since, acknowledged_at=None, archived_at=None)
    stale = Q(state__in=(RunState.RUNNING, RunState.PAUSED, RunState.STOPPING)) & (
        Q(heartbeat_at__lt=now - STALE_AFTER) | Q(heartbeat_at__isnull=True, running_at__lt=now - STALE_AFTER)
    )
    return list(with_reward(Run.objects.filter(failed | stale)).order_by("-id")[:limit])


def condition_of(run: Run) -> str:
    """Return a queued run's reason to wait, or the launcher's report about a live run; else empty."""
    if run.state == RunState.QUEUED:
        return run.progress_message
    if run.state not in (RunState.STARTING, RunState.RUNNING, RunState.PAUSED, RunState.STOPPING):
        return ""
    newest = RunAttempt.objects.filter(run=run, epoch=run.epoch)
    return newest.values_list("condition", flat=True).first() or ""


def is_stale(run: Run) -> bool:
    """Return whether a running, paused or stopping run lacks a recent heartbeat."""
    if run.state not in (RunState.RUNNING, RunState.PAUSED, RunState.STOPPING):
        return False
    seen = run.heartbeat_at or run.running_at
    return seen is not None and seen < timezone.now() - STALE_AFTER


def reward_series(run_ids: Iterable[int], *, last: int = 60) -> dict[int, list[float | None]]:
    """Return mean rewards of the last finished iterations of several runs, with one query."""
    series: dict[int, list[float | None]] = {run_id: [] for run_id in run_ids}
    rows = (
        Iteration.objects.filter(
            run_id__in=list(series), finished_at__isnull=False, index__gte=F("run__current_iteration") - last
        )
        .order_by("run_id", "index")
        .annotate(value=Cast(KT("metrics__reward/mean"), FloatField()))
        .values_list("run_id", "value")
    )
    for run_id, value in rows:
        series[run_id].append(value)
    return {run_id: values[-last:] for run_id, values in series.items()}


def get_run(run_id: int) -> Run | None:
    """Return one run with experiment, dataset, parent and creator; None when there is none."""
    return (
        Run.objects.select_related(
            "experiment", "dataset", "created_by", "parent", "archived_by", "acknowledged_by"
        )
        .filter(pk=run_id)
        .first()
    )


def _events(run: Run, kind: str) -> QuerySet[Event]:
    """Return events of one kind, or of all kinds that are not bulk data."""
    events = Event.objects.filter(run=run)
    if kind:
        return events.filter(type=kind)
    # Two clauses: the first is word for word the condition of the index.
    return events.exclude(type="step_finished").exclude(
        type__in=["sandboxes_changed", "pool_status", "engines_reported", "system_sampled"]
    )


def run_events(run: Run, *, kind: str, before: int | None, size: int = 100) -> list[Event]:
    """Return events newest first; steps and periodic reports only if selected by ``kind``."""
    events = _events(run, kind)
    if before:
        events = events.filter(seq__lt=before)
    return list(events.order_by("-seq")[:size])


def rollouts_kept(run: Run) -> int | None:
    """Return the number of rollouts kept by the current attempt; None if it kept none or has not begun."""
    begun = _events(run, "run_started").filter(epoch=run.epoch).order_by("-seq").first()
    return begun.payload.get("rollouts_kept") if begun is not None else None


def count_events(run: Run, *, kind: str) -> int:
    """Return the number of events that ``run_events`` returns without a limit."""
    return _events(run, kind).count()


def existing(run_ids: Collection[int]) -> set[int]:
    """Return the numbers of the runs that exist in the database."""
    return set(Run.objects.filter(pk__in=run_ids).values_list("pk", flat=True))


def runs_by_number(run_ids: Collection[int]) -> dict[int, Run]:
    """Return the existing runs by number, with dataset and experiment."""
    return Run.objects.select_related("dataset", "experiment").in_bulk(run_ids)


def comparable_runs(*, without: Collection[int], limit: int = 200) -> list[tuple[int, str]]:
    """Return the newest runs with iterations or evaluations that are not archived, as (id, name)."""
    measured = Exists(Iteration.objects.filter(run=OuterRef("pk"), finished_at__isnull=False))
    evaluated = Exists(Evaluation.objects.filter(run=OuterRef("pk")))
    runs = Run.objects.filter(measured | evaluated, archived_at=None).exclude(pk__in=without)
    return list(runs.order_by("-id").values_list("id", "name")[:limit])


def count_archived(experiment: Experiment) -> int:
    """Return the number of archived runs of an experiment."""
    return Run.objects.filter(experiment=experiment, archived_at__isnull=False).count()


def experiment_choices() -> list[tuple[int, str]]:
    """Return every experiment as (id, name)."""
    return list(Experiment.objects.order_by("name").values_list("id", "name"))


def tag_choices() -> list[str]:
    """Return every tag of the runs, sorted."""
    tags = Run.objects.exclude(tags=[]).order_by()
    names = tags.annotate(tag=Func(F("tags"), function="jsonb_array_elements_text", output_field=TextField()))
    return sorted(set(names.values_list("tag", flat=True)))


def runs_with_rollouts(dataset: str, limit: int = 20) -> list[int]:
    """Return the newest runs that collected solutions on a dataset, by number."""
    runs = Run.objects.filter(dataset__name=dataset, kind=RunKind.ROLLOUT, running_at__isnull=False)
    return list(runs.exclude(pk__in=Run.writing_tests()).order_by("-id").values_list("id", flat=True)[:limit])


def runs_to_verify(limit: int = 50) -> list[int]:
    """Return the newest runs with graded trajectories that solve tasks, by number."""
    return _graded(Run.objects.exclude(pk__in=Run.writing_tests()), limit)


def runs_with_written_tests(limit: int = 50) -> list[int]:
    """Return the newest runs with graded trajectories of testing agents, by number."""
    return _graded(Run.writing_tests(), limit)


def _graded(runs: QuerySet[Run], limit: int) -> list[int]:
    graded = Group.objects.filter(run=OuterRef("pk"), num_graded__gt=0)
    return list(runs.filter(Exists(graded)).order_by("-id").values_list("id", flat=True)[:limit])


def dataset_choices() -> list[str]:
    """Return the name of every dataset."""
    return list(Dataset.objects.order_by("name").values_list("name", flat=True))
