"""The tabs of a run's page: one dataclass and one builder each.

To add a tab: its name in ``TABS``, a dataclass, a branch in ``build_panel``, a template
``runs/tabs/_<name>.html``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.events.types import EVENT_ADAPTER
from webapp.core.contexts.event_words import event_words
from webapp.core.contexts.frame import choices_of
from webapp.core.contexts.numbers import MOST_ID, whole
from webapp.core.permissions import Role, shows_rollouts
from webapp.core.selectors import Page
from webapp.evaluations.contexts.evaluations import EvaluationPlot, run_evaluations
from webapp.evaluations.contexts.regrading import RegradingPanel, build_regrading
from webapp.evaluations.contexts.scores import ScoresPanel, build_scores
from webapp.evaluations.contexts.test_scores import TestScoresPanel, build_test_scores
from webapp.rollouts.models.trajectories import Group, Trajectory
from webapp.rollouts.selectors import groups as group_reads
from webapp.rollouts.selectors import trajectories as trajectory_reads
from webapp.rollouts.selectors.groups import PartOfRun
from webapp.runs.contexts.behaviours import BehavioursPanel, build_behaviours
from webapp.runs.contexts.checkpoints import CheckpointRow, build_checkpoints
from webapp.runs.contexts.collection import goal_of
from webapp.runs.contexts.config_view import Objective, SettingSection, describe, objective
from webapp.runs.contexts.engines import EnginesView, build_engines
from webapp.runs.contexts.solve_map import TasksPanel, build_tasks
from webapp.runs.contexts.step_figures import StepsPanel, build_steps
from webapp.runs.contexts.system import SystemPanel, build_system_panel
from webapp.runs.contexts.task_history import TaskHistory, build_task_history
from webapp.runs.contexts.timeline import TimelinePanel, build_timeline
from webapp.runs.kinds import kind_of
from webapp.runs.models.events import Event
from webapp.runs.models.runs import Run, RunAttempt
from webapp.runs.selectors import runs as run_reads
from webapp.runs.selectors.files import RunFiles, list_files
from webapp.runs.selectors.logs import LogTail, log_tail
from webapp.sandboxes.contexts import PoolView, pool_view

OF_IMPORTED = ("groups", "trajectories", "behaviours", "steps", "events", "configuration")
"""Tabs of imported trajectories, which no process sampled."""
LABELS = {"tasks": "Solve map"}
EVENT_KINDS = choices_of(sorted(EVENT_ADAPTER.json_schema()["discriminator"]["mapping"]))
OUTCOMES = choices_of(("none", "partial", "all"))


@dataclass(frozen=True, slots=True)
class Tab:
    """One tab of the bar."""

    name: str
    label: str
    url: str
    current: bool


def tab_names(run: Run) -> tuple[str, ...]:
    """Return the tabs of a run by its kind."""
    if run.is_imported:
        return OF_IMPORTED
    kind = kind_of(run.kind)
    served = kind.trains_by_iteration or run.config.get("policy", {}).get("engine") == "vllm"
    return tuple(name for name in kind.tabs if served or name != "engines")


def tabs_of(names: Sequence[str], current: str, url: str) -> tuple[Tab, ...]:
    """Return the bar with the current tab marked."""
    return tuple(
        Tab(name, LABELS.get(name, name.capitalize()), f"{url}?tab={name}", name == current) for name in names
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsPanel:
    """Groups, newest iteration first."""

    page: Page[Group]
    phase: str
    phases: tuple[tuple[str, str], ...]
    outcome: str
    outcomes: tuple[tuple[str, str], ...]
    """Choices (value, label) of the filters."""
    goal: str
    """Name of a rewarded rollout's result, as in the run's header."""
    part: PartOfRun
    part_label: str
    """The selected task and iterations in words; empty where all are shown."""
    history: TaskHistory | None
    """The selected task over iterations; None where all tasks are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoriesPanel:
    """The newest trajectories; the search page has all of them."""

    rows: tuple[Trajectory, ...]
    total: int
    findings: tuple[tuple[str, int], ...]
    """Signs of tampering: kind, and how many trajectories show it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPanel:
    """Evaluations with intervals, before and after."""

    plots: tuple[EvaluationPlot, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxesPanel:
    """The run's sandbox pool."""

    view: PoolView


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginesPanel:
    """The run's inference engines."""

    view: EnginesView


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointsPanel:
    """Checkpoints that exist, newest first."""

    rows: tuple[CheckpointRow, ...]
    total: int
    """Checkpoints that were ever saved."""


@dataclass(frozen=True, slots=True)
class EventRow:
    """An event in words."""

    event: Event
    text: str
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsPanel:
    """The event log, newest first, and the attempts."""

    rows: tuple[EventRow, ...]
    total: int
    kind: str
    kinds: tuple[tuple[str, str], ...]
    next_before: int | None
    first_page: bool
    attempts: tuple[RunAttempt, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPanel:
    """The end of the engine's log; None for those who may not see answers."""

    tail: LogTail | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesPanel:
    """The files in the run's folder; None for those who may not see answers."""

    files: RunFiles | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationPanel:
    """Every setting with the recipe's value beside it."""

    sections: tuple[SettingSection, ...]
    recipe: str
    num_changed: int
    objective: Objective


Panel = (
    GroupsPanel
    | ScoresPanel
    | TestScoresPanel
    | RegradingPanel
    | TrajectoriesPanel
    | BehavioursPanel
    | StepsPanel
    | TasksPanel
    | TimelinePanel
    | EvaluationPanel
    | EnginesPanel
    | SandboxesPanel
    | SystemPanel
    | CheckpointsPanel
    | EventsPanel
    | LogPanel
    | FilesPanel
    | ConfigurationPanel
)


def build_panel(run: Run, tab: str, params: Mapping[str, str], role: Role) -> Panel:
    """Return the current tab's content."""
    match tab:
        case "trajectories":
            return _trajectories(run)
        case "behaviours":
            return build_behaviours(run, hidden=not shows_rollouts(run, role))
        case "steps":
            return build_steps(run, hidden=not shows_rollouts(run, role))
        case "tasks":
            return build_tasks(run.pk, params)
        case "timeline":
            return build_timeline(run.pk, params)
        case "scores":
            by_tests = run.config.get("method") == "tests"
            return build_test_scores(run, params) if by_tests else build_scores(run, params)
        case "verdicts":
            return build_regrading(run, params)
        case "evaluation":
            return EvaluationPanel(plots=run_evaluations(run))
        case "engines":
            return EnginesPanel(view=build_engines(run))
        case "sandboxes":
            return SandboxesPanel(view=pool_view(run.pk))
        case "system":
            return build_system_panel(run)
        case "checkpoints":
            rows, total = build_checkpoints(run)
            return CheckpointsPanel(rows=rows, total=total)
        case "events":
            return _events(run, params)
        case "log":
            return LogPanel(tail=log_tail(run.pk) if role.sees_answers else None)
        case "files":
            return FilesPanel(files=list_files(run.pk) if role.sees_answers else None)
        case "configuration":
            return _configuration(run)
        case _:
            return _groups(run, params)


def _groups(run: Run, params: Mapping[str, str]) -> GroupsPanel:
    phase, outcome = params.get("phase", ""), params.get("outcome", "")
    part = PartOfRun(params.get("task", ""), whole(params.get("first", "")), whole(params.get("last", "")))
    page = group_reads.list_groups(
        run.pk, phase=phase, outcome=outcome, part=part, number=whole(params.get("page", "")) or 1
    )
    ends = [str(end) for end in (part.first, part.last) if end is not None]
    words = (
        f"task {group_reads.task_name(run.pk, part.task_key)}" if part.task_key else "",
        f"iterations {'–'.join(dict.fromkeys(ends))}" if len(ends) == 2 else "",
        f"iterations from {part.first}" if part.last is None and ends else "",
        f"iterations up to {part.last}" if part.first is None and ends else "",
    )
    return GroupsPanel(
        page=page,
        phase=phase,
        phases=tuple((name, name) for name in group_reads.phases(run.pk)),
        outcome=outcome,
        outcomes=OUTCOMES,
        goal=goal_of(run),
        part=part,
        part_label=", ".join(filter(None, words)),
        history=build_task_history(run, part.task_key) if part.task_key else None,
    )


def _configuration(run: Run) -> ConfigurationPanel:
    sections = describe(run.config, run.recipe)
    return ConfigurationPanel(
        sections=sections,
        recipe=run.recipe,
        num_changed=sum(section.num_changed for section in sections),
        objective=objective(run.config),
    )


def _trajectories(run: Run) -> TrajectoriesPanel:
    rows, total = trajectory_reads.newest(run.pk)
    return TrajectoriesPanel(
        rows=tuple(rows), total=total, findings=tuple(trajectory_reads.finding_counts(run.pk))
    )


def _events(run: Run, params: Mapping[str, str]) -> EventsPanel:
    kind, cursor = params.get("type", ""), whole(params.get("before", ""), most=MOST_ID)
    rows = run_reads.run_events(run, kind=kind, before=cursor)
    return EventsPanel(
        rows=tuple(EventRow(event, *event_words(run.pk, event)) for event in rows),
        total=run_reads.count_events(run, kind=kind),
        kind=kind,
        kinds=EVENT_KINDS,
        next_before=rows[-1].seq if len(rows) == 100 else None,  # 100: a full page of ``run_events``
        first_page=cursor is None,
        attempts=tuple(run.attempts.order_by("-epoch")),
    )
