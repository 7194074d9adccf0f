"""Reads of later verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from django.db.models import CharField, Count, Exists, OuterRef, Q
from django.db.models.functions import Cast

from engine.types import Verdict
from webapp.core.selectors import Page, paginate
from webapp.rollouts.models.regrades import Regrade
from webapp.rollouts.models.scores import Score
from webapp.rollouts.models.trajectories import Trajectory
from webapp.rollouts.selectors.scores import MISSING, current, verifying_by_tests

SIZE = 50
SHOWN = ("flips", "all", "lost", "not_regraded")
"""Choices of verdicts to list; a kind of flip is another one."""
LOST = Q(verdict=Verdict.INFRA_ERROR)
"""Condition of verdicts that infrastructure lost."""
REGRADED = Q(obstacle="") & ~LOST
"""Condition of trajectories with a new verdict."""
Passes = tuple[int | None, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Counts of a regrading."""

    num_trajectories: int
    num_regraded: int
    num_lost: int
    """Trajectories whose grading infrastructure lost."""
    flips: Mapping[str, int]
    """Kind of flip → trajectories."""
    obstacles: Mapping[str, int]
    """Reason → trajectories that cannot be graded again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoVerdicts:
    """A trajectory with its original and its new verdict."""

    source: str
    phase: str
    iteration: int
    task_key: str
    index: int
    source_epoch: int | None
    old: Verdict
    new: Verdict
    flip: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredScores:
    """Scores of a run's rollouts by iteration, task and index, each with the rollout's attempt."""

    p_yes: Mapping[tuple[int, str, int], tuple[int | None, float | None]]
    passes: Mapping[tuple[int, str, int], tuple[int | None, Passes]]
    """Passed regression and reproduction tests."""


def totals(run_id: int) -> Totals:
    """Return the counts of a regrading."""
    rows = current(Regrade, run_id).order_by()
    counts = rows.aggregate(
        all=Count("id"), regraded=Count("id", filter=REGRADED), lost=Count("id", filter=LOST)
    )
    flips, obstacles = (
        dict(
            rows.exclude(**{name: ""}).values_list(name).annotate(count=Count("id")).order_by("-count", name)
        )
        for name in ("flip", "obstacle")
    )
    return Totals(
        num_trajectories=counts["all"],
        num_regraded=counts["regraded"],
        num_lost=counts["lost"],
        flips=flips,
        obstacles=obstacles,
    )


def list_regrades(run_id: int, *, show: str = "flips", number: int = 1, size: int = SIZE) -> Page[Regrade]:
    """Return a page of later verdicts by run, phase and task.

    Args:
        run_id: the regrading.
        show: one of ``SHOWN``, or a kind of flip.
        number, size: the page.
    """
    rows = current(Regrade, run_id)
    match show:
        case "all":
            pass
        case "flips":
            rows = rows.exclude(flip="")
        case "lost":
            rows = rows.filter(LOST)
        case "not_regraded":
            rows = rows.exclude(obstacle="")
        case kind:
            rows = rows.filter(flip=kind)
    return paginate(
        rows.order_by("source", "phase", "task_key", "iteration", "index"), number=number, size=size
    )


def both_verdicts(run_id: int) -> list[TwoVerdicts]:
    """Return the trajectories that a regrading gave a new verdict, by run and phase."""
    rows = current(Regrade, run_id).filter(REGRADED).order_by("source", "phase", "task_key")
    names = ("source", "phase", "iteration", "task_key", "index", "source_epoch", "flip")
    return [
        TwoVerdicts(**dict(zip(names, values, strict=True)), old=Verdict(old), new=Verdict(new))
        for old, new, *values in rows.values_list("old_verdict", "verdict", *names)
    ]


def scores_of(source: str, phase: str) -> StoredScores:
    """Return the scores of a run's rollouts by the judge and the verifier by tests with the most scores."""
    rows = Score.objects.filter(source=source, phase=phase).order_by()
    counts = (
        rows.values_list("run_id").annotate(count=Count("id", filter=~MISSING)).order_by("count", "run_id")
    )
    by_tests = verifying_by_tests([run_id for run_id, _ in counts])
    most = {run_id in by_tests: run_id for run_id, count in counts if count}
    keys = ("iteration", "task_key", "index", "source_epoch")
    judged = rows.filter(run_id=most.get(False, 0)).values_list(*keys, "p_yes")
    tested = rows.filter(run_id=most.get(True, 0)).values_list(
        *keys, "regression_passes", "reproduction_passes"
    )
    return StoredScores(
        p_yes={(iteration, task, index): (epoch, p_yes) for iteration, task, index, epoch, p_yes in judged},
        passes={
            (iteration, task, index): (epoch, (regression, reproduction))
            for iteration, task, index, epoch, regression, reproduction in tested
        },
    )


def has_flipped(kind: str) -> Exists:
    """Return the condition that a regrading flipped a trajectory's verdict.

    Args:
        kind: kind of the flip; ``any`` for all kinds.
    """
    key = {name: OuterRef(name) for name in ("phase", "iteration", "task_key", "index")}
    folder = Cast(OuterRef("run_id"), CharField())
    rows = Regrade.objects.filter(source=folder, source_epoch=OuterRef("epoch"), **key)
    return Exists(rows.exclude(flip="") if kind == "any" else rows.filter(flip=kind))


def later_verdicts(trajectory: Trajectory) -> Sequence[Regrade]:
    """Return the verdicts that regradings gave to a trajectory, oldest regrading first."""
    rows = Regrade.objects.select_related("run").filter(
        source=str(trajectory.run_id),
        phase=trajectory.phase,
        iteration=trajectory.iteration,
        task_key=trajectory.task_key,
        index=trajectory.index,
        source_epoch=trajectory.epoch,
    )
    return list(rows.order_by("run_id"))
