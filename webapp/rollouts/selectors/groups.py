"""Reads of groups: the list on a run's page, one iteration's groups with siblings, one group."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import F, FloatField, Prefetch, QuerySet
from django.db.models.functions import Cast, NullIf

from webapp.core.selectors import Page, paginate
from webapp.rollouts.models.trajectories import Group, Step, TestResult, Trajectory
from webapp.rollouts.selectors.trajectories import with_token_flag

GROUPS_OF_PAGE = 32
TASKS_OF_PAGE = 200
"""Tasks of an evaluation that a page shows, one row each."""
_CELL_COLUMNS = (
    "index", "state", "verdict", "loss_mask", "mask_reason", "advantage", "reward", "termination",
)  # fmt: skip
"""Columns of a rollout that its cell shows (``templatetags.cells``)."""
_HEAVY = ("patch", "test_log", "detail", "error")


def _siblings() -> Prefetch[str]:
    rows = with_token_flag(Trajectory.objects.defer(*_HEAVY))
    return Prefetch("trajectories", queryset=rows.order_by("index"))


def _of_run(run_id: int) -> QuerySet[Group]:
    return (
        Group.objects.filter(run_id=run_id)
        .select_related("task")
        .defer("task__problem_statement", "task__metadata", "task__difficulty")
    )


@dataclass(frozen=True, slots=True)
class PartOfRun:
    """A task, or the iterations from ``first`` to ``last``; everything where nothing is set."""

    task_key: str = ""
    first: int | None = None
    last: int | None = None


def list_groups(
    run_id: int, *, phase: str, outcome: str, number: int, part: PartOfRun, size: int = 40
) -> Page[Group]:
    """Return groups of a run with siblings, newest iteration first.

    Args:
        phase: ``train``, ``eval:<name>`` or empty for all.
        outcome: ``none``, ``partial`` or ``all`` siblings solved; empty for any. Groups whose
            siblings were all stopped unsolved by a time limit match none of these.
        number: page.
        part: task and iterations.
        size: groups of a page.
    """
    groups = _of_run(run_id).prefetch_related(_siblings())
    if phase:
        groups = groups.filter(phase=phase)
    if part.task_key:
        groups = groups.filter(task_key=part.task_key)
    if part.first is not None:
        groups = groups.filter(iteration__gte=part.first)
    if part.last is not None:
        groups = groups.filter(iteration__lte=part.last)
    if outcome == "none":
        groups = groups.filter(num_solved=0, num_graded__gt=F("num_cut_short"))
    elif outcome == "partial":
        groups = groups.filter(num_solved__gt=0, num_solved__lt=F("num_graded"))
    elif outcome == "all":
        groups = groups.filter(num_solved__gt=0, num_solved=F("num_graded"))
    return paginate(groups.order_by("-iteration", "phase", "id"), number=number, size=size)


def iteration_groups(run_id: int, *, phase: str, iteration: int, number: int) -> Page[Group]:
    """Return groups of one iteration, or of an evaluation with the smallest solve rates first."""
    groups = _of_run(run_id).filter(phase=phase, iteration=iteration)
    if phase == "train":
        groups = groups.prefetch_related(_siblings())
        return paginate(groups.order_by("id"), number=number, size=GROUPS_OF_PAGE)
    cells = Trajectory.objects.only("group_id", *_CELL_COLUMNS).order_by("index")
    groups = groups.prefetch_related(Prefetch("trajectories", queryset=cells))
    rate = Cast("num_solved", FloatField()) / NullIf("num_graded", 0)
    ordered = groups.order_by(rate.asc(nulls_last=True), "task__instance_id", "task_key")
    return paginate(ordered, number=number, size=TASKS_OF_PAGE)


def task_name(run_id: int, task_key: str) -> str:
    """Return the readable name of a task of a run, or its key where there is none."""
    named = Group.objects.filter(run_id=run_id, task_key=task_key, task__isnull=False)
    return named.values_list("task__instance_id", flat=True).first() or task_key


def phases(run_id: int) -> list[str]:
    """Return the phases that have groups."""
    return sorted(Group.objects.filter(run_id=run_id).order_by().values_list("phase", flat=True).distinct())


def get_group(run_id: int, *, phase: str, iteration: int, task_key: str) -> Group | None:
    """Return one group with its task, run and complete siblings."""
    return (
        Group.objects.filter(run_id=run_id, phase=phase, iteration=iteration, task_key=task_key)
        .select_related("task__dataset", "run")
        .prefetch_related(
            Prefetch("trajectories", queryset=with_token_flag(Trajectory.objects.order_by("index")))
        )
        .first()
    )


def steps_of(trajectories: list[Trajectory]) -> dict[int, list[Step]]:
    """Return steps of several trajectories without their long texts, in one query."""
    result: dict[int, list[Step]] = {trajectory.pk: [] for trajectory in trajectories}
    steps = (
        Step.objects.filter(trajectory_id__in=list(result))
        .order_by("trajectory_id", "index")
        .defer("thought", "response", "observation", "arguments", "provider_state")
    )
    for step in steps:
        result[step.trajectory_id].append(step)
    return result


def tests_of(trajectories: list[Trajectory]) -> dict[int, list[TestResult]]:
    """Return the test results of several trajectories in one query."""
    result: dict[int, list[TestResult]] = {trajectory.pk: [] for trajectory in trajectories}
    rows = TestResult.objects.filter(trajectory_id__in=list(result)).order_by("trajectory_id", "position")
    for row in rows:
        result[row.trajectory_id].append(row)
    return result
