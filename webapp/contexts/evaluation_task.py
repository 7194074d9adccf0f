"""One task in two evaluations: the rollouts and patches of both, side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from django.urls import reverse

from webapp.contexts.evaluation_comparison import compare_query, find_point, point_label
from webapp.contexts.frame import Crumb, group_url
from webapp.contexts.groups import PatchView, patch_views
from webapp.models import Group, Trajectory
from webapp.selectors import groups as group_reads
from webapp.selectors.attempts import Point


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSide:
    """The task's rollouts in one of the evaluations."""

    label: str
    point: Point
    url: str
    """Address of the group."""
    group: Group | None
    """None where the evaluation has no rollout of the task."""
    rollouts: tuple[tuple[Trajectory, PatchView], ...]
    """Solved ones first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskComparisonContext:
    """The page."""

    section: str
    crumbs: tuple[Crumb, ...]
    title: str
    sides: tuple[TaskSide, ...]


def build_task_comparison(task_key: str, params: Mapping[str, str]) -> TaskComparisonContext | None:
    """Return the page; None where neither evaluation has a rollout of the task.

    Raises:
        ConfigError: an evaluation is not named, or its run does not exist.
    """
    first, second = (find_point(params.get(name, "")) for name in ("first", "second"))
    sides = (_side(first, task_key), _side(second, task_key))
    groups = [side.group for side in sides if side.group is not None]
    if not groups:
        return None
    title = next((group.task.instance_id for group in groups if group.task), task_key)
    comparison = reverse("evaluation-compare") + compare_query(first, second)
    runs = Crumb("Runs", reverse("run-list"))
    return TaskComparisonContext(
        section="runs",
        crumbs=(runs, Crumb("compare evaluations", comparison), Crumb(title)),
        title=title,
        sides=sides,
    )


def _side(point: Point, task_key: str) -> TaskSide:
    group = group_reads.get_group(
        point.run.pk, phase=point.phase, iteration=point.iteration, task_key=task_key
    )
    rollouts = sorted(
        group.trajectories.all() if group is not None else (),
        key=lambda one: (one.verdict != "passed", one.index),
    )
    return TaskSide(
        label=point_label(point),
        point=point,
        url=group_url(point.run.pk, point.phase, point.iteration, task_key),
        group=group,
        rollouts=tuple(zip(rollouts, patch_views(rollouts), strict=True)),
    )
