"""One iteration (or one evaluation): its numbers and every group with its siblings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.types import RunKind
from webapp.core.contexts.frame import Crumb, LiveCursor, iteration_url, phase_label, run_crumbs
from webapp.core.contexts.metrics import MeasuredSubject, by_subject
from webapp.core.contexts.numbers import whole
from webapp.core.selectors import Page, map_page
from webapp.rollouts.contexts.advantage import Sibling, algorithm_of, equation, siblings
from webapp.rollouts.models.trajectories import Group
from webapp.rollouts.selectors import groups as group_reads
from webapp.runs.contexts.collection import ENDED
from webapp.runs.contexts.runs import funnel_parts
from webapp.runs.contexts.timeline import Strip, build_strip
from webapp.runs.kinds import kind_of
from webapp.runs.models.iterations import Evaluation, Iteration
from webapp.runs.models.runs import Run
from webapp.runs.selectors import iterations as iteration_reads
from webapp.runs.selectors.iterations import BatchRate, Funnel, Point


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group with its siblings explained; those of an evaluation are cells without explanation."""

    group: Group
    siblings: tuple[Sibling, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationContext:
    """The page."""

    section: str
    crumbs: tuple[Crumb, ...]
    live: LiveCursor
    run: Run
    phase: str
    index: int
    title: str
    equation: str
    """The advantage of the run's objective; empty where nothing is trained on the rollouts."""
    solve: BatchRate | None
    """None before its end."""
    iteration: Iteration | None
    """None for evaluations."""
    seconds: float | None
    metrics: tuple[MeasuredSubject, ...]
    strip: Strip | None
    """None where it has no timeline."""
    funnel: Funnel | None
    funnel_parts: tuple[tuple[str, str, float], ...]
    page: Page[GroupRow]
    previous_url: str
    next_url: str
    params: Mapping[str, str]


def build_iteration(run: Run, phase: str, index: int, params: Mapping[str, str]) -> IterationContext | None:
    """Return the page; None when the run has no such iteration or evaluation."""
    page = group_reads.iteration_groups(
        run.pk, phase=phase, iteration=index, number=whole(params.get("page", "")) or 1
    )
    iteration = iteration_reads.get_iteration(run.pk, index) if phase == "train" else None
    evaluation = None if phase == "train" else iteration_reads.get_evaluation(run.pk, phase, index)
    measured = iteration or evaluation
    if measured is None and not page.total:
        return None
    seconds = None
    if iteration is not None and iteration.finished_at is not None:
        seconds = (iteration.finished_at - iteration.started_at).total_seconds()
    train = phase == "train"
    trains = train and kind_of(run.kind).trains_by_iteration
    funnel = iteration_reads.funnel(run.pk, index) if trains else None
    algorithm = algorithm_of(run)
    has_next = train and run.current_iteration is not None and index < run.current_iteration
    return IterationContext(
        section="runs",
        crumbs=run_crumbs(run, Crumb(phase_label(phase, index))),
        live=LiveCursor(run.pk, run.last_seq, "iteration", str(run.epoch), (phase, str(index))),
        run=run,
        phase=phase,
        index=index,
        title=phase_label(phase, index),
        equation=equation(run) if trains and algorithm is not None else "",
        solve=_solve_rate(run, measured),
        iteration=iteration,
        seconds=seconds,
        metrics=by_subject(measured.metrics) if measured is not None else (),
        strip=build_strip(iteration),
        funnel=funnel,
        funnel_parts=funnel_parts(funnel, ended=run.state in ENDED),
        page=map_page(
            page,
            lambda group: GroupRow(group, siblings(group.trajectories.all(), algorithm) if train else ()),
        ),
        previous_url=iteration_url(run.pk, phase, index - 1) if train and index > 0 else "",
        next_url=iteration_url(run.pk, phase, index + 1) if has_next else "",
        params=dict(params),
    )


def _solve_rate(run: Run, measured: Iteration | Evaluation | None) -> BatchRate | None:
    if isinstance(measured, Evaluation):
        return BatchRate(
            solved=measured.num_solved,
            graded=measured.num_samples,
            rate=measured.solve_rate,
            low=measured.interval_low,
            high=measured.interval_high,
            endings=measured.endings,
        )
    if measured is None or measured.finished_at is None or not RunKind(run.kind).has_rollouts:
        return None
    return iteration_reads.batch_rate(run.pk, Point(measured.index, measured.metrics, None))
