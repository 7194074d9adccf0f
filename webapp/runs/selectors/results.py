"""Reads of the results of runs without training: rows that were validated, checked or imported."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Count, F, Q

from engine.evaluation.endings import Endings
from engine.events.health import RowStatus
from engine.types import INFRASTRUCTURE_REASONS, TerminationReason, Verdict
from webapp.datasets.models.health import Validation
from webapp.rollouts.models.trajectories import Group, Trajectory
from webapp.runs.models.runs import Run


def validation_counts(run: Run) -> dict[str, int]:
    """Return the number of rows that a run has validated, by status."""
    rows = Validation.objects.filter(run=run).order_by().values_list("status")
    return dict(rows.annotate(n=Count("id")))


def validation_faults(run: Run, limit: int) -> list[Validation]:
    """Return a run's findings about rows that are not valid, in the dataset's order."""
    faults = Validation.objects.filter(run=run).exclude(status=RowStatus.VALID.value)
    return list(
        faults.select_related("task__dataset")
        .defer("sides", "flaky_tests", "task__problem_statement")
        .order_by("task__position", "id")[:limit]
    )


@dataclass(frozen=True, slots=True)
class CheckedRows:
    """Numbers of rows by result of scripted rollouts: the oracle's must pass, those without a change fail."""

    hold: int
    broken: int
    unknown: int
    """Rows without a graded rollout."""


def checked_rows(run: Run, *, passes: bool) -> CheckedRows:
    """Count the rows of a run of the oracle (``passes``) or of the policy that changes nothing."""
    broken = _broken(passes=passes)
    graded = Q(num_graded__gt=0)
    groups = Group.objects.filter(run=run, num_finished__gt=0)
    counts = groups.aggregate(
        hold=Count("id", filter=graded & ~broken), broken=Count("id", filter=broken),
        unknown=Count("id", filter=~graded),
    )  # fmt: skip
    return CheckedRows(**counts)


def _broken(*, passes: bool) -> Q:
    if passes:
        return Q(num_graded__gt=0, num_solved__lt=F("num_graded"))
    return Q(num_solved__gt=0)


def broken_rollouts(run: Run, *, passes: bool, limit: int) -> list[Trajectory]:
    """Return one rollout of each row that does not hold or was not graded, with the reason."""
    unwanted = ~Q(verdict=Verdict.PASSED.value) if passes else Q(verdict=Verdict.PASSED.value)
    rows = Trajectory.objects.filter(unwanted, run=run, state=Trajectory.State.FINISHED)
    rows = rows.exclude(termination=TerminationReason.CANCELLED)
    return list(rows.select_related("group__task").order_by("group_id", "index").distinct("group_id")[:limit])


def verdict_counts(run: Run) -> list[tuple[str, int]]:
    """Return the number of a run's finished trajectories by verdict, which is empty without grading."""
    rows = Trajectory.objects.filter(run=run, state=Trajectory.State.FINISHED).order_by()
    return list(rows.values_list("verdict").annotate(n=Count("id")))


def endings(*, left_out: Collection[str] = (), **where: Any) -> Endings:
    """Return finished trajectories by ending; ungraded ones count where infrastructure failed.

    Args:
        left_out: keys of tasks whose trajectories are not counted.
        where: filter of the trajectories.
    """
    rows = Trajectory.objects.filter(**where, state=Trajectory.State.FINISHED).exclude(task_key__in=left_out)
    lost = Q(termination__in=INFRASTRUCTURE_REASONS) | Q(verdict=Verdict.INFRA_ERROR)
    counts = list(
        rows.order_by()
        .values("termination")
        .annotate(graded=Count("reward"), lost=Count("id", filter=lost))
        .values_list("termination", "graded", "lost")
    )
    return Endings.of(
        {termination: graded for termination, graded, _ in counts}, excluded=sum(lost for *_, lost in counts)
    )


def existing_runs(names: Sequence[str | int]) -> list[Run]:
    """Return the runs that exist in the database, ordered by number."""
    # A number of 19 digits may exceed the range of the primary key.
    numbers = [int(name) for name in names if str(name).isdecimal() and len(str(name)) < 19]
    return list(Run.objects.filter(pk__in=numbers).only("pk", "name").order_by("pk"))
