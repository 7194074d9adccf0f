"""One task in two evaluations: the rollouts and patches of both, side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from django.urls import reverse

from engine.errors import ConfigError
from webapp.core.contexts.frame import Crumb, group_url
from webapp.evaluations.contexts.comparison import compare_query, find_point, point_label
from webapp.rollouts.contexts.groups import PatchGroup, patch_groups
from webapp.rollouts.contexts.pair import pair_url
from webapp.rollouts.models.trajectories import Group, Trajectory
from webapp.rollouts.selectors import groups as group_reads
from webapp.rollouts.selectors.attempts import Point


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSide:
    """The task's rollouts in one of the evaluations."""

    label: str
    point: Point
    url: str
    """URL of the group."""
    group: Group | None
    """None where the evaluation has no rollout of the task."""
    rollouts: tuple[Trajectory, ...]
    """Solved ones first."""
    patches: tuple[PatchGroup, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskComparisonContext:
    """Context of the page of one task in two evaluations."""

    section: str
    crumbs: tuple[Crumb, ...]
    title: str
    sides: tuple[TaskSide, ...]
    pair_url: str
    """URL of a rollout of each side, steps aligned; empty where a side has none."""
    error: str
    """Reason why there is nothing to compare; empty without one."""


def build_task_comparison(task_key: str, params: Mapping[str, str]) -> TaskComparisonContext:
    """Build the context of the page of one task in two evaluations."""
    comparison, error = reverse("evaluation-compare"), ""
    sides: tuple[TaskSide, ...] = ()
    try:
        first, second = (find_point(params.get(name, "")) for name in ("first", "second"))
    except ConfigError as problem:
        error = str(problem)
    else:
        comparison += compare_query(first, second)
        sides = (_side(first, task_key), _side(second, task_key))
    tasks = [side.group.task for side in sides if side.group is not None]
    title = next((task.instance_id for task in tasks if task), task_key)
    return TaskComparisonContext(
        section="runs",
        crumbs=(
            Crumb("Runs", reverse("run-list")),
            Crumb("compare evaluations", comparison),
            Crumb(title),
        ),
        title=title,
        sides=sides,
        pair_url=_pair_url(sides),
        error=error,
    )


def _pair_url(sides: tuple[TaskSide, ...]) -> str:
    if not sides or not sides[0].rollouts:
        return ""
    return pair_url(sides[0].rollouts[0], sides[1].rollouts)


def _side(point: Point, task_key: str) -> TaskSide:
    group = group_reads.get_group(
        point.run.pk, phase=point.phase, iteration=point.iteration, task_key=task_key
    )
    rollouts = sorted(
        group.trajectories.all() if group is not None else (),
        key=lambda trajectory: (trajectory.verdict != "passed", trajectory.index),
    )
    return TaskSide(
        label=point_label(point),
        point=point,
        url=group_url(point.run.pk, point.phase, point.iteration, task_key),
        group=group,
        rollouts=tuple(rollouts),
        patches=patch_groups(rollouts),
    )
