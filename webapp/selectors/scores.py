"""Reads of verifiers' scores."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

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


def forecasts_by_task(run_id: int) -> dict[str, list[Forecast]]:
    """Return the scores of graded trajectories by task."""
    found: dict[str, list[Forecast]] = defaultdict(list)
    rows = Score.objects.filter(run_id=run_id, p_yes__isnull=False, resolved__isnull=False)
    for task_key, p_yes, resolved in rows.order_by().values_list("task_key", "p_yes", "resolved"):
        assert p_yes is not None
        found[task_key].append(Forecast(p_yes, bool(resolved)))
    return found


def task_names(task_keys: Sequence[str]) -> Mapping[str, str]:
    """Return the readable names of tasks by key; of those in several datasets any."""
    return dict(Task.objects.filter(key__in=set(task_keys)).values_list("key", "instance_id"))
