"""Reads of the runs table: filters, order, groups, and values of the columns that people choose.

A column has a key: a name in ``runs.contexts.rows``, ``set:`` with a setting, ``metric:`` with a metric.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import Avg, F, OuterRef, Q, QuerySet, Subquery, TextField, Value, Window
from django.db.models.expressions import Combinable
from django.db.models.fields.json import KT, KeyTransform
from django.db.models.functions import Coalesce, NullIf

from webapp.core.selectors import Page, paginate
from webapp.runs.models.iterations import Evaluation, Iteration
from webapp.runs.models.runs import Run
from webapp.runs.selectors.runs import ACTIVE_STATES, heldout_first, newest_metric, with_reward

SETTING = "set:"
METRIC = "metric:"
_CHOSEN = re.compile(r"set:[\w-]+(\.[\w-]+)*|metric:[\w-]+/[\w./-]+", re.ASCII)
_MOST_CHARACTERS = 120
SORTS = {
    "id": F("id"), "name": F("name"), "state": F("state"), "kind": F("kind"), "recipe": F("recipe"),
    "dataset": F("dataset__name"), "experiment": F("experiment__name"), "arm": F("arm"),
    "owner": F("created_by__username"), "reward": F("reward"), "heldout": F("heldout"),
    "started": F("running_at"), "progress": F("current_iteration"),
}  # fmt: skip
GROUPS = ("experiment", "recipe", "dataset", "model", "state")
"""Columns to group by, beside settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilters:
    """Filters, order and groups of the runs table; empty means everything."""

    state: str = ""
    kind: str = ""
    experiment: int | None = None
    dataset: str = ""
    tag: str = ""
    archived: str = ""
    """``only`` selects archived runs, ``all`` includes them; they are left out otherwise."""
    q: str = ""
    sort: str = "-id"
    """A key of ``SORTS``, a setting or a metric, with a leading minus for descending."""
    group: str = ""
    """One of ``GROUPS`` or a setting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunGroup:
    """Runs with the same value, over all pages of the table."""

    value: Any
    """None for runs without a value."""
    num_runs: int
    rates: tuple[float, ...]
    """Newest held-out solve rates of the runs that have one, ascending."""

    @property
    def mean(self) -> float | None:
        """Return the mean of the held-out rates."""
        return statistics.fmean(self.rates) if self.rates else None


def is_chosen_column(key: str) -> bool:
    """Return whether a key names a setting or a metric."""
    return len(key) <= _MOST_CHARACTERS and _CHOSEN.fullmatch(key) is not None


def is_group(key: str) -> bool:
    """Return whether runs can be grouped by a column."""
    return key in GROUPS or (key.startswith(SETTING) and is_chosen_column(key))


def list_runs(filters: RunFilters, *, number: int, size: int = 50) -> Page[Run]:
    """Return one page of runs, newest first unless sorted otherwise.

    With ``filters.group`` the runs of a group follow each other, with its value as ``grouping``. Groups are
    ordered by value, or by their mean held-out rate where runs are sorted by it.
    """
    runs = with_reward(_filtered(filters))
    name, descending = filters.sort.removeprefix("-"), filters.sort.startswith("-")
    column: Combinable = SORTS.get(name, F("id"))
    if is_chosen_column(name):
        column = _setting(name) if name.startswith(SETTING) else newest_metric(name.removeprefix(METRIC))
    if name == "heldout":
        runs = runs.annotate(heldout=_newest_rate())
    order = [_directed(column, descending)]
    if is_group(filters.group):
        runs = runs.annotate(grouping=_grouping(filters.group))
        order.insert(0, F("grouping").asc(nulls_last=True))
        if name == "heldout":
            runs = runs.annotate(group_mean=Window(Avg("heldout"), partition_by=[F("grouping")]))
            order.insert(0, _directed(F("group_mean"), descending))
    return paginate(runs.order_by(*order, "-id"), number=number, size=size)


def group_key(value: Any) -> str:
    """Return a group's value as the key of ``list_groups``."""
    return json.dumps(value, sort_keys=True)


def list_groups(filters: RunFilters) -> dict[str, RunGroup]:
    """Return the groups of the runs that the filters select, by ``group_key``; empty without a group."""
    if not is_group(filters.group):
        return {}
    rows = _filtered(filters).order_by().annotate(grouping=_grouping(filters.group), heldout=_newest_rate())
    values: dict[str, Any] = {}
    rates: dict[str, list[float | None]] = {}
    for value, rate in rows.values_list("grouping", "heldout"):
        key = group_key(value)
        values[key] = value
        rates.setdefault(key, []).append(rate)
    return {
        key: RunGroup(
            value=values[key],
            num_runs=len(known),
            rates=tuple(sorted(rate for rate in known if rate is not None)),
        )
        for key, known in rates.items()
    }


def chosen_settings(run_ids: Collection[int], keys: Collection[str]) -> dict[int, dict[str, Any]]:
    """Return run → column → value of a setting; None where the run has no such setting."""
    if not keys:
        return {}
    paths = {f"setting_{place}": _setting(key) for place, key in enumerate(keys)}
    rows = Run.objects.filter(pk__in=run_ids).order_by().annotate(**paths).values_list("pk", *paths)
    return {run_id: dict(zip(keys, values, strict=True)) for run_id, *values in rows}


def newest_metrics(run_ids: Collection[int]) -> dict[int, Mapping[str, float]]:
    """Return the metrics of the newest finished iteration of each run that has one."""
    newest = Iteration.objects.filter(run_id__in=run_ids, finished_at__isnull=False)
    return dict(newest.order_by("run_id", "-index").distinct("run_id").values_list("run_id", "metrics"))


def configurations(run_ids: Collection[int]) -> list[dict[str, Any]]:
    """Return the configurations of runs."""
    return list(Run.objects.filter(pk__in=run_ids).order_by("pk").values_list("config", flat=True))


def _filtered(filters: RunFilters) -> QuerySet[Run]:
    runs = Run.objects.all()
    if filters.archived != "all":
        runs = runs.filter(archived_at__isnull=filters.archived != "only")
    if filters.tag:
        runs = runs.filter(tags__contains=[filters.tag])
    if filters.state == "active":
        runs = runs.filter(state__in=ACTIVE_STATES)
    elif filters.state:
        runs = runs.filter(state=filters.state)
    if filters.kind:
        runs = runs.filter(kind=filters.kind)
    if filters.experiment:
        runs = runs.filter(experiment_id=filters.experiment)
    if filters.dataset:
        runs = runs.filter(dataset__name=filters.dataset)
    if filters.q:
        runs = runs.filter(Q(name__icontains=filters.q) | Q(recipe__icontains=filters.q))
    return runs


def _directed(column: Combinable, descending: bool) -> Any:
    # Django's expressions have both methods; its stubs know them for some classes only.
    expression: Any = column
    return expression.desc(nulls_last=True) if descending else expression.asc(nulls_last=True)


def _newest_rate() -> Subquery:
    return Subquery(heldout_first(Evaluation.objects.filter(run=OuterRef("pk"))).values("solve_rate")[:1])


def _setting(key: str) -> KeyTransform:
    """Return a setting as JSON, which sorts by number where it is one."""
    first, *rest = key.removeprefix(SETTING).split(".")
    value = KeyTransform(first, "config")
    for part in rest:
        value = KeyTransform(part, value)
    return value


def _grouping(key: str) -> Combinable:
    if key == "model":
        policy = (KT(f"config__policy__{name}") for name in ("model", "checkpoint", "type"))
        named = (NullIf(name, Value(""), output_field=TextField()) for name in policy)
        return Coalesce(*named, output_field=TextField())
    return _setting(key) if key.startswith(SETTING) else SORTS[key]
