"""The page of one run, with its tabs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from django.urls import reverse

from webapp.core.contexts.frame import Crumb, LiveCursor, run_crumbs
from webapp.core.contexts.words import in_words
from webapp.core.permissions import Role, change_refusal, shows_rollouts
from webapp.evaluations.contexts.evaluations import EvaluationPlot, run_evaluations
from webapp.runs.contexts.baseline import BaselineChange, baseline_changes
from webapp.runs.contexts.chart_points import AXES, MOST_POINTS, axis_of, build_charts
from webapp.runs.contexts.collection import ENDED
from webapp.runs.contexts.edit_form import EditForm, edit_form
from webapp.runs.contexts.header import RunHeader, build_header
from webapp.runs.contexts.tabs import Panel, Tab, build_panel, tab_names, tabs_of
from webapp.runs.kinds import TABS, kind_of
from webapp.runs.models.alerts import Alert
from webapp.runs.models.runs import Run
from webapp.runs.selectors import alerts as alert_reads
from webapp.runs.selectors import iterations as iteration_reads
from webapp.runs.selectors import runs as run_reads
from webapp.runs.selectors.baselines import pinned_baselines
from webapp.runs.selectors.iterations import Funnel


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
    axes: tuple[tuple[str, str], ...]
    axis: str
    """Quantity of the charts' x axis."""
    baseline: int | None
    """Run whose curves the charts show beside those of the run."""
    change: BaselineChange | None
    """Change of the held-out rate against it; None where it is not known."""
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
    baseline: int | None
    change: BaselineChange | None
    funnel: Funnel | None
    funnel_parts: tuple[tuple[str, str, float], ...]
    evaluations: tuple[EvaluationPlot, ...]


def build_summary(run: Run) -> RunSummary:
    """Return the part of the page above its tabs."""
    points = iteration_reads.points_after(run.pk, -1, limit=MOST_POINTS + 1)
    header = build_header(run, points)
    alerts, num_alerts = alert_reads.open_alerts(run_id=run.pk, limit=5)
    trains = points and kind_of(run.kind).trains_by_iteration
    baselines = pinned_baselines()
    baseline = baselines.of(run)
    heldout = run_reads.newest_heldout([run.pk]) if baseline is not None else {}
    latest = iteration_reads.funnel(run.pk, points[-1].index) if trains else None
    return RunSummary(
        header=header,
        alerts=tuple(alerts),
        num_alerts=num_alerts,
        charts=build_charts(run, points).as_json(),
        baseline=baseline,
        change=baseline_changes([run], baselines, heldout).get(run.pk),
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
        axes=AXES,
        axis=axis_of(params),
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
