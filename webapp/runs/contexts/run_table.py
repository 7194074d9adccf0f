"""The runs table: filters, columns, groups and saved views, and the page of selected runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.urls import reverse

from engine.types import RunKind, RunState
from webapp.core.contexts.frame import Crumb
from webapp.core.contexts.metrics import METRICS
from webapp.core.contexts.numbers import MOST_ID, page_number, whole
from webapp.core.selectors import Page
from webapp.runs.contexts.config_view import compare_settings
from webapp.runs.contexts.rows import COLUMNS, Column, RunRow, column_of, default_columns, run_rows
from webapp.runs.models.run_views import RunView
from webapp.runs.models.runs import Run
from webapp.runs.selectors import run_table as reads
from webapp.runs.selectors import runs as run_reads
from webapp.runs.selectors.run_table import GROUPS, METRIC, SETTING, RunFilters, RunGroup
from webapp.runs.selectors.run_views import views_of

MOST_COLUMNS = 24
MOST_OFFERED = 100
"""Settings, and metrics, that the page offers as columns."""
ARCHIVED_CHOICES = (("all", "shown too"), ("only", "only these"))
"""Choices (value, label) of the filter for archived runs; hidden without one."""


@dataclass(frozen=True, slots=True)
class ColumnChoice:
    """A column that the page offers."""

    column: Column
    shown: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChoices:
    """Choices of the forms above the table."""

    states: tuple[str, ...]
    kinds: tuple[str, ...]
    experiments: tuple[tuple[int, str], ...]
    datasets: tuple[str, ...]
    tags: tuple[str, ...]
    archived: tuple[tuple[str, str], ...]
    groups: tuple[tuple[str, str], ...]
    columns: tuple[ColumnChoice, ...]
    settings: tuple[ColumnChoice, ...]
    """Settings that differ between the shown runs, and those that are columns."""
    metrics: tuple[ColumnChoice, ...]
    """Metrics that the shown runs reported, and those that are columns."""
    num_settings: int
    """Number of settings that differ between the shown runs."""
    views: tuple[RunView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTable:
    """One page of the table."""

    page: Page[Run]
    rows: tuple[RunRow, ...]
    columns: tuple[Column, ...]
    num_groups: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunListContext:
    """The page of the runs table."""

    section: str
    crumbs: tuple[Crumb, ...]
    page: Page[Run]
    rows: tuple[RunRow, ...]
    columns: tuple[Column, ...]
    width: int
    """Number of cells of a row."""
    group: Column | None
    num_groups: int
    filters: RunFilters
    choices: TableChoices | None
    """None in an update of the table, which does not contain the forms."""
    params: Mapping[str, str]
    filtered: bool
    can_operate: bool


def parse_run_filters(params: Mapping[str, str]) -> RunFilters:
    """Return filters from a query string; an invalid experiment or group is ignored."""
    group = params.get("group", "")
    return RunFilters(
        state=params.get("state", ""),
        kind=params.get("kind", ""),
        experiment=whole(params.get("experiment", ""), most=MOST_ID),
        dataset=params.get("dataset", ""),
        tag=params.get("tag", ""),
        archived=params.get("archived", ""),
        q=params.get("q", "").strip(),
        sort=params.get("sort", "-id"),
        group=group if reads.is_group(group) else "",
    )


def parse_columns(text: str) -> tuple[Column, ...]:
    """Return the columns of keys separated by commas, in the order of the table; unknown ones are ignored.

    Without any, the default columns.
    """
    given = dict.fromkeys(key.strip() for key in text.split(","))
    fixed = [key for key in COLUMNS if key in given]
    chosen = [key for prefix in (SETTING, METRIC) for key in given if key.startswith(prefix)]
    keys = [*fixed, *filter(reads.is_chosen_column, chosen)][:MOST_COLUMNS]
    return tuple(map(column_of, keys)) or default_columns()


def read_values(columns: Collection[Column], run_ids: Collection[int]) -> dict[int, dict[str, Any]]:
    """Return run → column → value of the columns of settings and metrics."""
    keys = [column.key for column in columns if column.is_setting]
    metrics = [column.key for column in columns if column.is_metric]
    settings = reads.chosen_settings(run_ids, keys)
    newest = reads.newest_metrics(run_ids) if metrics else {}
    return {
        run_id: {
            **settings.get(run_id, {}),
            **{key: newest.get(run_id, {}).get(key.removeprefix(METRIC)) for key in metrics},
        }
        for run_id in run_ids
    }


def read_table(filters: RunFilters, *, columns: str, number: int, size: int = 50) -> RunTable:
    """Return one page of the table; ``columns`` has keys for ``parse_columns``."""
    shown = parse_columns(columns)
    page = reads.list_runs(filters, number=number, size=size)
    numbers = [run.pk for run in page.rows]
    groups = reads.list_groups(filters)
    rows = run_rows(
        page.rows,
        run_reads.reward_series(numbers) if COLUMNS["trend"] in shown else {},
        columns=shown,
        values=read_values(shown, numbers),
        begins=_first_runs(page.rows, groups),
    )
    return RunTable(page=page, rows=rows, columns=shown, num_groups=len(groups))


def build_run_list(
    params: Mapping[str, str], *, user_id: int | None, can_operate: bool, update: bool = False
) -> RunListContext:
    """Return the page of a query string.

    Args:
        params: the query string.
        user_id: the person, whose views are listed.
        can_operate: whether they may create and change runs.
        update: whether it updates an open page, whose forms stay as they are.
    """
    filters = parse_run_filters(params)
    table = read_table(filters, columns=params.get("columns", ""), number=page_number(params))
    numbers = [run.pk for run in table.page.rows]
    return RunListContext(
        section="runs",
        crumbs=(Crumb("Runs"),),
        page=table.page,
        rows=table.rows,
        columns=table.columns,
        width=len(table.columns) + 3,
        group=column_of(filters.group) if filters.group else None,
        num_groups=table.num_groups,
        filters=filters,
        choices=None if update else _choices(numbers, table.columns, filters, user_id),
        params=dict(params),
        filtered=filters != RunFilters(sort=filters.sort, group=filters.group),
        can_operate=can_operate,
    )


def _first_runs(runs: Sequence[Run], groups: Mapping[str, RunGroup]) -> dict[int, RunGroup]:
    """Return the groups of a page by the first run of each."""
    if not groups:
        return {}
    first: dict[str, int] = {}
    for run in runs:
        first.setdefault(reads.group_key(getattr(run, "grouping", None)), run.pk)
    return {run_id: groups[key] for key, run_id in first.items() if key in groups}


def _choices(
    numbers: Collection[int], columns: Collection[Column], filters: RunFilters, user_id: int | None
) -> TableChoices:
    shown = {column.key for column in columns}
    differences, _ = compare_settings(reads.configurations(numbers))
    different = [f"{SETTING}{difference.key}" for difference in differences]
    settings = [key for key in different if reads.is_chosen_column(key)][:MOST_OFFERED]
    reported = {key for metrics in reads.newest_metrics(numbers).values() for key in metrics}
    metrics = [f"{METRIC}{key}" for key in METRICS if key in reported][:MOST_OFFERED]
    groups = dict.fromkeys(
        [*GROUPS, *settings, *(key for key in [*shown, filters.group] if key.startswith(SETTING))]
    )

    def choices(keys: Sequence[str], prefix: str) -> tuple[ColumnChoice, ...]:
        others = sorted(key for key in shown if key.startswith(prefix) and key not in keys)
        return tuple(ColumnChoice(column_of(key), key in shown) for key in [*keys, *others])

    return TableChoices(
        states=("active", *(str(state) for state in RunState)),
        kinds=tuple(str(kind) for kind in RunKind),
        experiments=tuple(run_reads.experiment_choices()),
        datasets=tuple(run_reads.dataset_choices()),
        tags=tuple(run_reads.tag_choices()),
        archived=ARCHIVED_CHOICES,
        groups=tuple((key, column.title or column.label) for key in groups if (column := column_of(key))),
        columns=tuple(ColumnChoice(column, column.key in shown) for column in COLUMNS.values()),
        settings=choices(settings, SETTING),
        metrics=choices(metrics, METRIC),
        num_settings=len(different),
        views=tuple(views_of(user_id)) if user_id is not None else (),
    )


def plain_values(row: RunRow) -> dict[str, Any]:
    """Return a row's columns as JSON; rates are shares, times are UTC."""
    run, rate, first = row.run, row.heldout, row.first
    fixed = {
        "state": run.state,
        "kind": run.kind,
        "recipe": run.recipe,
        "model": row.policy,
        "dataset": run.dataset.name if run.dataset else None,
        "experiment": run.experiment.name if run.experiment else None,
        "arm": run.arm,
        "owner": run.created_by.get_username() if run.created_by else None,
        "progress": [row.done, row.total],
        "reward": getattr(run, "reward", None),
        "heldout": None if rate is None else [rate.solve_rate, rate.interval_low, rate.interval_high],
        "change": None
        if row.change is None
        else [row.change.difference, row.change.low, row.change.high, row.change.baseline],
        "gain": None if rate is None or first is None else [first.solve_rate, rate.solve_rate],
        "trend": list(row.rewards),
        "started": run.running_at,
    }
    return {column.key: fixed.get(column.key, value) for column, value in row.cells}


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedRunsContext:
    """Runs to be changed together."""

    section: str
    crumbs: tuple[Crumb, ...]
    runs: tuple[Run, ...]
    back: str
    """Query string of the list that they were selected in."""


def build_selected_runs(runs: Sequence[Run], *, back: str) -> SelectedRunsContext:
    """Return the context of the page of selected runs, by number; ``back`` is the query of their list."""
    crumbs = (Crumb("Runs", reverse("run-list")), Crumb("selected"))
    ordered = sorted(runs, key=lambda run: run.pk)
    return SelectedRunsContext(section="runs", crumbs=crumbs, runs=tuple(ordered), back=back)
