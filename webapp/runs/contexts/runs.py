"""The list of runs, and one run's page with its tabs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from django.urls import reverse

from engine.types import RunKind, RunState
from webapp.core.contexts.charts import CHARTED, ChartSet, announced_charts, charts_of, run_charts
from webapp.core.contexts.frame import Crumb, LiveCursor, run_crumbs
from webapp.core.contexts.numbers import MOST_ID, bounds, whole
from webapp.core.contexts.words import in_words
from webapp.core.permissions import Role, change_refusal, shows_rollouts
from webapp.core.selectors import Page
from webapp.evaluations.contexts.evaluations import EvaluationPlot, run_evaluations
from webapp.runs.contexts.collection import ENDED
from webapp.runs.contexts.edit_form import EditForm, edit_form
from webapp.runs.contexts.header import RunHeader, build_header
from webapp.runs.contexts.rows import RunRow, run_rows
from webapp.runs.contexts.tabs import Panel, Tab, build_panel, tab_names, tabs_of
from webapp.runs.kinds import TABS, kind_of
from webapp.runs.models.alerts import Alert
from webapp.runs.models.runs import Run
from webapp.runs.selectors import alerts as alert_reads
from webapp.runs.selectors import iterations as iteration_reads
from webapp.runs.selectors import runs as run_reads
from webapp.runs.selectors import series as series_reads
from webapp.runs.selectors.iterations import Funnel, Point
from webapp.runs.selectors.runs import RunFilters

MOST_POINTS = 512
"""Greatest number of iterations charted one by one; of longer runs all but the tail are in buckets."""
_TAIL = 64
"""Newest iterations of a long run that are charted one by one."""
ARCHIVED_CHOICES = (("all", "shown too"), ("only", "only these"))
"""Choices (value, label) of the filter for archived runs; hidden without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunListContext:
    """The list."""

    section: str
    crumbs: tuple[Crumb, ...]
    page: Page[Run]
    rows: tuple[RunRow, ...]
    filters: RunFilters
    states: tuple[str, ...]
    kinds: tuple[str, ...]
    experiments: tuple[tuple[int, str], ...]
    datasets: tuple[str, ...]
    tags: tuple[str, ...]
    archived_choices: tuple[tuple[str, str], ...]
    params: Mapping[str, str]
    filtered: bool
    can_operate: bool


def parse_run_filters(params: Mapping[str, str]) -> RunFilters:
    """Return filters from a query string; an invalid experiment is ignored."""
    experiment = params.get("experiment", "")
    return RunFilters(
        state=params.get("state", ""),
        kind=params.get("kind", ""),
        experiment=whole(experiment, most=MOST_ID),
        dataset=params.get("dataset", ""),
        tag=params.get("tag", ""),
        archived=params.get("archived", ""),
        q=params.get("q", "").strip(),
        sort=params.get("sort", "-id"),
    )


def page_number(params: Mapping[str, str]) -> int:
    """Return ``page`` of a query string; 1 if it is missing or invalid."""
    return whole(params.get("page", "")) or 1


def build_run_list(params: Mapping[str, str], *, can_operate: bool) -> RunListContext:
    """Return the list, filtered and sorted by the query string."""
    filters = parse_run_filters(params)
    page = run_reads.list_runs(filters, number=page_number(params))
    rewards = run_reads.reward_series([run.pk for run in page.rows])
    return RunListContext(
        section="runs",
        crumbs=(Crumb("Runs"),),
        page=page,
        rows=run_rows(list(page.rows), rewards),
        filters=filters,
        states=("active", *(str(state) for state in RunState)),
        kinds=tuple(str(kind) for kind in RunKind),
        experiments=tuple(run_reads.experiment_choices()),
        datasets=tuple(run_reads.dataset_choices()),
        tags=tuple(run_reads.tag_choices()),
        archived_choices=ARCHIVED_CHOICES,
        params=dict(params),
        filtered=filters != RunFilters(sort=filters.sort),
        can_operate=can_operate,
    )


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDetailContext:
    """One run's page."""

    section: str
    crumbs: tuple[Crumb, ...]
    live: LiveCursor
    run: Run
    header: RunHeader
    alerts: tuple[Alert, ...]
    num_alerts: int
    charts: Mapping[str, object]
    funnel: Funnel | None
    funnel_parts: tuple[tuple[str, str, float], ...]
    evaluations: tuple[EvaluationPlot, ...]
    headline: EvaluationPlot | None
    """Evaluation for the headline, on other than training tasks where there is one."""
    tabs: tuple[Tab, ...]
    tab: str
    panel: Panel | None
    """Content of the tab; None in an update of a page whose tab is not updated."""
    params: Mapping[str, str]
    can_operate: bool
    refusal: str
    """Reason why the viewer may not change the run; empty where they may."""
    shows_rollouts: bool
    edit: EditForm
    experiments: tuple[tuple[int, str], ...]
    """Choices of the form that files the run; empty for those who may not."""


def funnel_parts(funnel: Funnel | None, *, ended: bool) -> tuple[tuple[str, str, float], ...]:
    """Return (label, css class, amount) of the funnel's bar, from trained to lost."""
    if funnel is None:
        return ()
    parts: list[tuple[str, str, float]] = [("trained", "trained", funnel.trained)]
    parts.append(("zero advantage: all siblings alike", "zero", funnel.zero_advantage))
    parts += [(f"masked: {in_words(reason)}", "masked", n) for reason, n in funnel.masked]
    parts.append(("infrastructure failed", "infra", funnel.infrastructure))
    parts.append(("not in an update" if ended else "not finished yet", "open", funnel.unfinished))
    return tuple(part for part in parts if part[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """The part of a run's page above its tabs, the same for all tabs."""

    header: RunHeader
    alerts: tuple[Alert, ...]
    num_alerts: int
    charts: Mapping[str, object]
    funnel: Funnel | None
    funnel_parts: tuple[tuple[str, str, float], ...]
    evaluations: tuple[EvaluationPlot, ...]


def build_summary(run: Run) -> RunSummary:
    """Return the part of the page above its tabs."""
    points = iteration_reads.points_after(run.pk, -1, limit=MOST_POINTS + 1)
    header = build_header(run, points)
    alerts, num_alerts = alert_reads.open_alerts(run_id=run.pk, limit=5)
    trains = points and kind_of(run.kind).trains_by_iteration
    latest = iteration_reads.funnel(run.pk, points[-1].index) if trains else None
    return RunSummary(
        header=header,
        alerts=tuple(alerts),
        num_alerts=num_alerts,
        charts=_charts(run, points).as_json(),
        funnel=latest,
        funnel_parts=funnel_parts(latest, ended=run.state in ENDED),
        evaluations=run_evaluations(run),
    )


def build_run_detail(
    run: Run,
    params: Mapping[str, str],
    *,
    role: Role,
    user_id: int | None = None,
    update: bool = False,
    summary: RunSummary | None = None,
    panel: Panel | None = None,
) -> RunDetailContext:
    """Return the page as of ``run.last_seq`` (rows may be newer: live fragments replace whole regions).

    Args:
        run: the run.
        params: the query string.
        role: the viewer's role.
        user_id: the viewer, who may own the run.
        update: whether it updates an open page. A tab of scores or verdicts is then left out until the run
            has ended, since its statistics read all of them.
        summary: the part above the tabs, if it was built for another tab.
        panel: the content of the tab, if it was built before.
    """
    refusal = change_refusal(run, role, user_id)
    above = summary or build_summary(run)
    tab = current_tab(run, params)
    return RunDetailContext(
        section="runs",
        crumbs=run_crumbs(run),
        live=LiveCursor(run.pk, run.last_seq, "run", str(run.epoch)),
        run=run,
        **{field.name: getattr(above, field.name) for field in fields(above)},
        headline=min(above.evaluations, key=lambda plot: plot.name == "train", default=None),
        tabs=tabs_of(tab_names(run), tab, reverse("run-detail", args=[run.pk])),
        tab=tab,
        panel=None
        if update and tab in ("scores", "verdicts") and run.state not in ENDED
        else panel or build_panel(run, tab, params, role),
        params={**params, "tab": tab},
        can_operate=role.includes(Role.OPERATOR),
        refusal=refusal,
        shows_rollouts=shows_rollouts(run, role),
        edit=edit_form(run),
        experiments=tuple(run_reads.experiment_choices()) if not refusal and not update else (),
    )


def current_tab(run: Run, params: Mapping[str, str]) -> str:
    """Return the tab that a query string names, or the first one."""
    tab, tabs = params.get("tab", ""), tab_names(run)
    return tab if tab in {*TABS, *tabs} else tabs[0]


def _charts(run: Run, points: Sequence[Point]) -> ChartSet:
    if not points and run.state not in ENDED:
        return announced_charts(kind_of(run.kind).charts)
    if len(points) <= MOST_POINTS:
        return run_charts([(point.index, point.metrics) for point in points])
    series = series_reads.bucketed([run.pk], CHARTED, buckets=MOST_POINTS // 2, tail=_TAIL)[run.pk]
    return charts_of(series.x, series.mean, bucketed=True)


def build_chart_part(run_id: int, params: Mapping[str, str]) -> dict[str, object]:
    """Return the points of a run's charts from one iteration to another, as JSON.

    Raises ValueError for a bound that is no number.
    """
    low, high = bounds(params)
    series = series_reads.bucketed([run_id], CHARTED, low=low, high=high, buckets=MOST_POINTS)[run_id]
    return {"x": series.x, "columns": series.mean}
