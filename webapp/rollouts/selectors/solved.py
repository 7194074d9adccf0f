"""Solved and graded rollouts of tasks in several runs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from django.db.models import F, Min, QuerySet, Sum

from engine.types import Verdict
from webapp.rollouts.models.trajectories import Group, Trajectory


@dataclass(frozen=True, slots=True)
class Solved:
    """Rollouts of one task in one run."""

    solved: int
    graded: int

    @property
    def rate(self) -> float:
        """Return the share that passed."""
        return self.solved / self.graded


def solved_by_task(run_ids: Collection[int], phase: str = "") -> dict[str, dict[int, Solved]]:
    """Return task key → run → graded rollouts; tasks and runs without any are left out.

    Args:
        run_ids: the runs.
        phase: ``train`` or ``eval:<name>``; empty counts all.
    """
    groups = Group.objects.filter(run_id__in=run_ids, num_graded__gt=0)
    if phase:
        groups = groups.filter(phase=phase)
    rows = (
        groups.order_by()
        .values_list("task_key", "run_id")
        .annotate(solved=Sum("num_solved"), graded=Sum("num_graded"))
    )
    by_task: dict[str, dict[int, Solved]] = {}
    for task_key, run_id, solved, graded in rows:
        by_task.setdefault(task_key, {})[run_id] = Solved(solved, graded)
    return by_task


def phases_of(run_ids: Collection[int]) -> list[str]:
    """Return the phases of the rollouts of runs."""
    rows = Group.objects.filter(run_id__in=run_ids).order_by("phase").values_list("phase", flat=True)
    return list(rows.distinct())


def first_rollouts(
    run_ids: Collection[int], task_keys: Collection[str], phase: str = ""
) -> dict[tuple[str, int, bool], Trajectory]:
    """Return the first passed and the first failed rollout of each task in each run.

    Keys are the task, the run, and whether it passed.
    """
    groups = Group.objects.filter(run_id__in=run_ids, task_key__in=task_keys, num_graded__gt=0)
    if phase:
        groups = groups.filter(phase=phase)
    graded = Trajectory.objects.filter(reward__isnull=False)
    # The first groups come from the small table: a run may have a hundred thousand rollouts.
    passed = graded.filter(verdict=Verdict.PASSED, group__in=_firsts(groups.filter(num_solved__gt=0)))
    failed = graded.exclude(verdict__in=["", Verdict.PASSED]).filter(
        group__in=_firsts(groups.filter(num_solved__lt=F("num_graded")))
    )
    first = {
        pk: (task_key, run_id, is_passed)
        for is_passed, rows in ((True, passed), (False, failed))
        for task_key, run_id, pk in rows.order_by()
        .values_list("task_key", "run_id")
        .annotate(first=Min("pk"))
    }
    keys = Trajectory.objects.only("run_id", "phase", "iteration", "task_key", "index").in_bulk(list(first))
    return {first[pk]: row for pk, row in keys.items()}


def _firsts(groups: QuerySet[Group]) -> list[int]:
    """Return the first group of each task in each run."""
    rows = groups.order_by().values_list("task_key", "run_id").annotate(first=Min("pk"))
    return [first for _, _, first in rows]
