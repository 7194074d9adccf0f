"""Reads of the timelines of a run's iterations."""

from __future__ import annotations

from collections.abc import Collection

from webapp.core.selectors import Page, paginate
from webapp.rollouts.models.trajectories import Group
from webapp.runs.models.iterations import Iteration

MAX_SIZE = 100


def list_timelines(run_id: int, *, number: int, size: int = 10) -> Page[Iteration]:
    """Return iterations with a timeline, newest first, without their metrics."""
    rows = Iteration.objects.filter(run_id=run_id, timeline__isnull=False).order_by("-index")
    return paginate(rows.defer("metrics", "profile"), number=number, size=max(1, min(size, MAX_SIZE)))


def task_names(run_id: int, keys: Collection[str]) -> dict[str, str]:
    """Return the readable names of a run's tasks by key; those of unknown tasks are left out."""
    rows = Group.objects.filter(run_id=run_id, phase="train", task_key__in=keys, task__isnull=False)
    return dict(rows.order_by().values_list("task_key", "task__instance_id").distinct())
