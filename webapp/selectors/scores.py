"""Reads of verifiers' scores."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from django.db.models import F

from engine.verifiers.calibration import Forecast
from webapp.models import Score, Task
from webapp.selectors.paging import Page, paginate

SIZE = 50


def list_scores(run_id: int, *, missing: bool = False, number: int = 1, size: int = SIZE) -> Page[Score]:
    """Return a page of scores, highest first and missing ones last; with ``missing`` only those."""
    rows = Score.objects.filter(run_id=run_id, **({"p_yes": None} if missing else {}))
    return paginate(rows.order_by(F("p_yes").desc(nulls_last=True), "id"), number=number, size=size)


def count_missing(run_id: int) -> int:
    """Return the number of trajectories that got no score."""
    return Score.objects.filter(run_id=run_id, p_yes=None).count()


@dataclass(frozen=True, slots=True)
class GradedScore:
    """The score of a graded trajectory."""

    task_key: str
    forecast: Forecast
    prompt_tokens: int
    """Length of the judge's prompt; 0 where an endpoint does not report it."""


def graded_scores(run_id: int) -> list[GradedScore]:
    """Return the scores of all graded trajectories."""
    rows = Score.objects.filter(run_id=run_id, p_yes__isnull=False, resolved__isnull=False)
    values = rows.order_by().values_list("task_key", "p_yes", "resolved", "prompt_tokens")
    return [
        GradedScore(task_key, Forecast(p_yes or 0.0, bool(resolved)), tokens)
        for task_key, p_yes, resolved, tokens in values
    ]


def repositories(task_keys: Collection[str]) -> Mapping[str, str]:
    """Return the repositories of tasks by key."""
    return dict(Task.objects.filter(key__in=set(task_keys)).values_list("key", "repo"))


def task_names(task_keys: Collection[str]) -> Mapping[str, str]:
    """Return the readable names of tasks by key; of those in several datasets any."""
    return dict(Task.objects.filter(key__in=set(task_keys)).values_list("key", "instance_id"))
