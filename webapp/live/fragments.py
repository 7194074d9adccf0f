"""Regions of live pages, rendered from the pages' own partials.

A snapshot is the complete state of a page's regions at one point in time, rendered by the same context
builder and templates as the page itself, so that a page plus later fragments equals a reloaded page (tested).
To add a region, give its element an id and ``data-live`` in the page, and add its partial here. If the region
shows another area of the run, add the area to ``AREAS``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, TypeAlias

from django.template.loader import render_to_string

from webapp.core.contexts.numbers import MOST_ID, whole
from webapp.core.pages import variables
from webapp.core.permissions import Role, shows_rollouts
from webapp.datasets.contexts.health import build_health
from webapp.datasets.selectors import datasets as dataset_reads
from webapp.experiments.contexts.experiments import build_experiment
from webapp.experiments.selectors import get_experiment
from webapp.overview.contexts.overview import build_overview
from webapp.rollouts.contexts.groups import build_group
from webapp.rollouts.contexts.steps import StepEntry
from webapp.rollouts.contexts.trajectories import build_trajectory
from webapp.runs.contexts.iterations import build_iteration
from webapp.runs.contexts.run_table import build_run_list
from webapp.runs.contexts.runs import RunSummary, build_run_detail, build_summary, current_tab
from webapp.runs.contexts.tabs import Panel
from webapp.runs.models.runs import Run
from webapp.runs.selectors import runs as run_reads
from webapp.sandboxes.contexts import build_pool


@dataclass(frozen=True, slots=True)
class Subscription:
    """Page shown by a tab; equal subscriptions share one snapshot."""

    page: str
    run_id: int | None
    target: tuple[str, ...]
    params: tuple[tuple[str, str], ...]
    role: Role
    user_id: int | None = None
    """Operator who sees the page, if it depends on the owner of runs; otherwise the role shares it."""

    @property
    def can_operate(self) -> bool:
        """Return whether the person may create and control runs."""
        return self.role.includes(Role.OPERATOR)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Regions of a page at one point in time."""

    seq: int
    identity: str = ""
    html: Mapping[str, str] = field(default_factory=dict)
    """Inner HTML by element id."""
    steps: tuple[str, ...] = ()
    """HTML of every step of a trajectory; a tab receives only its missing steps."""
    charts: Mapping[str, Any] | None = None


PanelKey: TypeAlias = tuple[str, tuple[tuple[str, str], ...], bool]
"""Tab, other query parameters, and permission to read rollouts."""


@dataclass(slots=True)
class SharedReads:
    """Query results shared by the pages of one run between two changes."""

    made_at: float = field(default_factory=time.monotonic)
    lock: Lock = field(default_factory=Lock)
    run: Run | None = None
    summary: RunSummary | None = None
    panels: dict[PanelKey, tuple[Panel, str]] = field(default_factory=dict)
    """Contents of tabs of the run page, and their HTML."""


class GoneError(Exception):
    """The page's object does not exist or was deleted."""


RUN_REGIONS = {
    "run-header": "runs/_header.html",
    "run-results": "runs/results/_results.html",
    "run-alerts": "runs/_alerts.html",
    "run-funnel": "core/_funnel.html",
    "run-evaluations": "runs/_evaluations.html",
    "run-panel": "runs/_panel.html",
}
SHARED_TABS = ("groups", "trajectories")
"""Large tabs of the run page that depend on the role only by the permission to read rollouts."""
EXPERIMENT_REGIONS = {
    "experiment-controls": "experiments/_controls.html",
    "experiment-arms": "experiments/_arms.html",
    "experiment-outcome": "experiments/_outcome.html",
}
POOL_REGIONS = {"pool-head": "sandboxes/_head.html", "pool-body": "sandboxes/_body.html"}
TRAJECTORY_REGIONS = {
    "trajectory-head": "rollouts/trajectories/_head.html",
    "trajectory-strip": "rollouts/trajectories/_strip.html",
    "trajectory-prompt": "rollouts/trajectories/_prompt.html",
    "trajectory-tail": "rollouts/trajectories/_tail.html",
    "trajectory-annotations": "rollouts/trajectories/_annotations.html",
    "trajectory-outcome": "rollouts/trajectories/_outcome.html",
    "trajectory-patch": "rollouts/trajectories/_patch.html",
}


def _render(regions: Mapping[str, str], context: dict[str, Any]) -> dict[str, str]:
    return {region: render_to_string(template, context) for region, template in regions.items()}


def _run(subscription: Subscription, shared: SharedReads) -> Run:
    with shared.lock:
        if shared.run is None and subscription.run_id is not None:
            shared.run = run_reads.get_run(subscription.run_id)
    if shared.run is None:
        raise GoneError
    return shared.run


def _readable_run(subscription: Subscription, shared: SharedReads) -> Run:
    run = _run(subscription, shared)
    if not shows_rollouts(run, subscription.role):
        raise GoneError
    return run


def _run_page(subscription: Subscription, shared: SharedReads) -> Snapshot:
    run = _run(subscription, shared)
    params = dict(subscription.params)
    with shared.lock:
        shared.summary = shared.summary or build_summary(run)
    tab, filters = current_tab(run, params), ((k, v) for k, v in subscription.params if k != "tab")
    key = (tab, tuple(filters), shows_rollouts(run, subscription.role))
    panel, panel_html = shared.panels.get(key, (None, ""))
    context = build_run_detail(
        run,
        params,
        role=subscription.role,
        user_id=subscription.user_id,
        update=True,
        summary=shared.summary,
        panel=panel,
    )
    shared_html = {"run-panel": panel_html} if panel else {}
    regions = {name: template for name, template in RUN_REGIONS.items() if name not in shared_html}
    if context.panel is None:
        del regions["run-panel"]
    html = shared_html | _render(regions, variables(context))
    if tab in SHARED_TABS and context.panel is not None:
        shared.panels[key] = context.panel, html["run-panel"]
    return Snapshot(seq=run.last_seq, identity=context.live.identity, html=html, charts=context.charts)


def _iteration_page(subscription: Subscription, shared: SharedReads) -> Snapshot:
    run = _run(subscription, shared)
    phase, index = subscription.target
    context = build_iteration(run, phase, int(index), dict(subscription.params))
    if context is None:
        raise GoneError
    html = _render({"iteration-body": "rollouts/iterations/_body.html"}, variables(context))
    return Snapshot(seq=run.last_seq, identity=context.live.identity, html=html)


def _group_page(subscription: Subscription, shared: SharedReads) -> Snapshot:
    run = _readable_run(subscription, shared)
    phase, iteration, task_key = subscription.target
    context = build_group(run, phase=phase, iteration=int(iteration), task_key=task_key, params={})
    if context is None:
        raise GoneError
    html = _render({"group-body": "rollouts/groups/_body.html"}, variables(context))
    return Snapshot(seq=run.last_seq, identity=context.live.identity, html=html)


def _trajectory_page(subscription: Subscription, shared: SharedReads) -> Snapshot:
    run = _readable_run(subscription, shared)
    phase, iteration, task_key, index = subscription.target
    context = build_trajectory(
        run,
        phase=phase,
        iteration=int(iteration),
        task_key=task_key,
        index=int(index),
        role=subscription.role,
        user_id=subscription.user_id,
        newest=True,
    )
    if context is None:
        raise GoneError
    html = _render(TRAJECTORY_REGIONS, variables(context))
    return Snapshot(
        seq=run.last_seq,
        identity=context.live.identity,
        html=html,
        steps=tuple(_step_html(entry) for entry in context.steps),
    )


def _step_html(entry: StepEntry) -> str:
    if entry.view is None:
        return render_to_string("rollouts/trajectories/_stub.html", {"entry": entry})
    return render_to_string("rollouts/trajectories/_step.html", {"view": entry.view})


def _overview_page(subscription: Subscription, _shared: SharedReads) -> Snapshot:
    context = build_overview(role=subscription.role, user_id=subscription.user_id)
    return Snapshot(seq=0, html=_render({"overview-bands": "overview/_bands.html"}, variables(context)))


def _run_list_page(subscription: Subscription, _shared: SharedReads) -> Snapshot:
    params = dict(subscription.params)
    context = build_run_list(params, user_id=None, can_operate=subscription.can_operate, update=True)
    return Snapshot(seq=0, html=_render({"run-list": "runs/_list.html"}, variables(context)))


def _experiment_page(subscription: Subscription, _shared: SharedReads) -> Snapshot:
    number = whole(subscription.target[0], most=MOST_ID)
    experiment = get_experiment(number) if number is not None else None
    if experiment is None:
        raise GoneError
    context = build_experiment(
        experiment, dict(subscription.params), role=subscription.role, user_id=subscription.user_id
    )
    html = _render(EXPERIMENT_REGIONS, variables(context))
    return Snapshot(seq=0, identity=context.live_identity, html=html, charts=context.charts)


def _health_page(subscription: Subscription, shared: SharedReads) -> Snapshot:
    run = _run(subscription, shared)
    dataset = dataset_reads.get_dataset(subscription.target[0])
    if dataset is None:
        raise GoneError
    context = build_health(dataset, dict(subscription.params), can_operate=subscription.can_operate)
    html = _render({"health-body": "datasets/_health_body.html"}, variables(context))
    return Snapshot(seq=run.last_seq, identity=dataset.name, html=html)


def _sandboxes_page(subscription: Subscription, _shared: SharedReads) -> Snapshot:
    context = build_pool(dict(subscription.params), can_operate=subscription.can_operate)
    return Snapshot(seq=0, html=_render(POOL_REGIONS, variables(context)), charts=context.charts)


PAGES: Mapping[str, Callable[[Subscription, SharedReads], Snapshot]] = {
    "overview": _overview_page,
    "runs": _run_list_page,
    "sandboxes": _sandboxes_page,
    "experiment": _experiment_page,
    "run": _run_page,
    "iteration": _iteration_page,
    "group": _group_page,
    "trajectory": _trajectory_page,
    "health": _health_page,
}
TARGET_LENGTHS = {"experiment": 1, "iteration": 2, "group": 3, "trajectory": 4, "health": 1}
SAME_FOR_ALL = ("iteration",)
"""Pages that are the same for every role; they are rendered for the lowest role."""
OWNED = ("overview", "experiment", "run", "trajectory")
"""Pages that show operators controls for their own runs, labels and comments."""
AREAS: Mapping[str, frozenset[str]] = {
    "overview": frozenset({"progress"}),
    "runs": frozenset({"progress"}),
    "sandboxes": frozenset({"pool"}),
    "experiment": frozenset({"progress"}),
    "run": frozenset({"progress", "rollouts", "pool"}),
}
"""Areas of ``ingestion.services.changes`` shown by a page, in addition to ``run``, which every page shows."""
_SHOWN_BY = {
    "steps": ("trajectories", "events", "log"),
    "system": ("system", "events"),
    "scans": ("behaviours", "steps"),
    "labels": ("trajectories",),
}
"""Tabs of the run page that change after a step, a report of the machine, a rollout's scan, and a label."""


def is_affected(subscription: Subscription, changes: Mapping[str, Any] | None) -> bool:
    """Return whether changes to a run (``Changes.message``; None: of any area) may affect a page."""
    if changes is None:
        return True
    if subscription.page == "experiment" and str(changes.get("experiment")) != subscription.target[0]:
        return False
    if "run" in changes["areas"]:
        return True
    if not AREAS.get(subscription.page, frozenset()).isdisjoint(changes["areas"]):
        return True
    if subscription.page == "run":
        tab = dict(subscription.params).get("tab")
        return any(tab in _SHOWN_BY.get(area, ()) for area in changes["areas"])
    if subscription.page not in ("iteration", "group", "trajectory"):
        return False
    target = subscription.target
    named = [tuple(map(str, key)) for key in (*changes["groups"], *changes["rollouts"])]
    return any(key[: len(target)] == target[: len(key)] for key in named)


def snapshot(subscription: Subscription, shared: SharedReads | None = None) -> Snapshot:
    """Render every region of a page.

    Args:
        subscription: the page.
        shared: query results of other pages of its run since the last change.

    Raises:
        GoneError: the page's object does not exist.
    """
    return PAGES[subscription.page](subscription, shared or SharedReads())
