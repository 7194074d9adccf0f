"""Reads of verifiers' scores."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TypeVar

from django.db.models import CharField, Count, Exists, F, OuterRef, Q, QuerySet
from django.db.models.functions import Cast, Coalesce

from engine.types import RunKind, RunState, Verdict
from engine.verifiers.calibration import Forecast
from webapp.core.selectors import Page, paginate
from webapp.datasets.models.datasets import Task
from webapp.rollouts.models.regrades import Regrade
from webapp.rollouts.models.scores import ExaminedTest, Score
from webapp.rollouts.models.trajectories import Trajectory
from webapp.runs.models.runs import Run

SIZE = 50
_MAX_DIGITS = 19
Row = TypeVar("Row", Score, ExaminedTest, Regrade)


MISSING = ~Q(error="") | Q(p_yes=None, regression_passes=None, reproduction_passes=None)
"""Condition of rows without the score that was requested."""


def current(model: type[Row], run_id: int) -> QuerySet[Row]:
    """Return a run's scores, examined tests or later verdicts, except those of removed rollouts.

    An attempt that resumes from a checkpoint removes the rollouts after it and produces them again. Rows of
    runs that are not in the database, or that never ran, are all returned.
    """
    rows = model.objects.filter(run_id=run_id)
    named = Run.objects.annotate(folder=Cast("pk", CharField())).filter(
        Q(Exists(Trajectory.objects.filter(run_id=OuterRef("pk")))) | Q(running_at__isnull=False),
        folder__in=rows.order_by().values("source"),
    )
    known_runs = list(named.order_by().values_list("pk", flat=True))
    return rows.filter(~Q(source__in=list(map(str, known_runs))) | made_now(known_runs))


def made_now(run_ids: Collection[int]) -> Exists:
    """Return the condition that one of these runs still has the scored rollout, from the same attempt."""
    key = {name: OuterRef(name) for name in ("phase", "iteration", "task_key", "index")}
    own = Trajectory.objects.filter(run_id__in=run_ids, **key).annotate(folder=Cast("run_id", CharField()))
    scored_epoch = Coalesce(OuterRef("source_epoch"), F("epoch"))
    return Exists(own.filter(epoch=scored_epoch, folder=OuterRef("source")))


def unfinished_sources(run: Run) -> tuple[int, ...]:
    """Return the source runs that had not ended when a run read them; none if it follows them."""
    settings = run.config.get("verifier") or run.config["regrade"]
    if settings.get("follow") or run.starting_at is None:
        return ()
    named = [int(name) for name in settings["runs"] if name.isdecimal() and len(name) < _MAX_DIGITS]
    was_active = Q(finished_at=None) | Q(finished_at__gt=run.starting_at)
    runs = Run.objects.filter(was_active, pk__in=named, running_at__isnull=False)
    return tuple(runs.order_by("pk").values_list("pk", flat=True))


def count_stale(model: type[Row], run_id: int) -> int:
    """Return the number of a run's rows whose rollouts were removed."""
    return model.objects.filter(run_id=run_id).count() - current(model, run_id).count()


def given_to(trajectories: Collection[Trajectory]) -> list[Score]:
    """Return the scores that verifiers' runs gave to trajectories of one group, in the order of the runs."""
    epochs = {trajectory.index: trajectory.epoch for trajectory in trajectories}
    if not epochs:
        return []
    first = next(iter(trajectories))
    rows = Score.objects.select_related("run").filter(
        source=str(first.run_id),
        phase=first.phase,
        iteration=first.iteration,
        task_key=first.task_key,
        index__in=epochs,
    )
    return [row for row in rows.order_by("run_id", "index") if row.source_epoch in (None, epochs[row.index])]


def list_scores(run_id: int, *, missing: bool = False, number: int = 1, size: int = SIZE) -> Page[Score]:
    """Return a page of scores, best first and missing ones last; with ``missing`` only those.

    Scores by tests are ordered by task, then as the rule ``eb`` ranks them.
    """
    rows = current(Score, run_id).filter(*([MISSING] if missing else []))
    order = [F(name).desc(nulls_last=True) for name in ("p_yes", "regression_passes", "reproduction_passes")]
    by_task = ["task_key"] if verifying_by_tests([run_id]) else []
    return paginate(rows.order_by(*by_task, *order, "id"), number=number, size=size)


def verifying_by_tests(run_ids: Collection[int]) -> frozenset[int]:
    """Return the verifiers' runs whose scores are passed tests."""
    runs = Run.objects.filter(pk__in=run_ids, config__method="tests")
    return frozenset(runs.order_by().values_list("pk", flat=True))


def count_missing(run_id: int) -> int:
    """Return the number of trajectories that lack a score."""
    return current(Score, run_id).filter(MISSING).count()


def can_retry(run: Run) -> bool:
    """Return whether a run has succeeded with missing scores, or with verdicts that infrastructure lost."""
    if run.state != RunState.SUCCEEDED:
        return False
    if run.kind == RunKind.REGRADE:
        return current(Regrade, run.pk).filter(verdict=Verdict.INFRA_ERROR).exists()
    return run.kind == RunKind.VERIFIER and count_missing(run.pk) > 0


def list_tests(run_id: int, *, number: int = 1, size: int = SIZE) -> Page[ExaminedTest]:
    """Return a page of the tests that testing agents wrote, kept ones first."""
    rows = current(ExaminedTest, run_id)
    return paginate(rows.order_by("rejection", "task_key", "id"), number=number, size=size)


@dataclass(frozen=True, slots=True, kw_only=True)
class TestTotals:
    """Counts of a run's patches and written tests."""

    __test__ = False
    num_scored: int
    num_resolved: int
    num_untested: int
    """Patches of tasks whose changed files no test of the repository touches."""
    statuses: tuple[tuple[str, int], ...]
    """Statuses of regression test runs other than ``ran``, with their numbers of patches."""
    num_tests: int
    num_kept: int
    num_toxic: int
    num_misleading: int
    """Toxic tests that a failing patch passes."""


def test_totals(run_id: int) -> TestTotals:
    """Return the counts of a run that verifies by tests."""
    rows = current(Score, run_id).order_by()
    scored = rows.filter(error="")
    score_counts = scored.aggregate(
        scored=Count("id"),
        resolved=Count("id", filter=Q(resolved=True)),
        untested=Count("id", filter=Q(regression_tests=0)),
    )
    endings = rows.exclude(regression_status__in=("", "ran")).values_list("regression_status")
    toxic = Q(rejection="", good__gt=0, good_passed=0)
    tests = (
        current(ExaminedTest, run_id)
        .order_by()
        .aggregate(
            tests=Count("id"),
            kept=Count("id", filter=Q(rejection="")),
            toxic=Count("id", filter=toxic),
            misleading=Count("id", filter=toxic & Q(bad_passed__gt=0)),
        )
    )
    return TestTotals(
        num_scored=score_counts["scored"],
        num_resolved=score_counts["resolved"],
        num_untested=score_counts["untested"],
        statuses=tuple(endings.annotate(count=Count("id")).order_by("-count", "regression_status")),
        num_tests=tests["tests"],
        num_kept=tests["kept"],
        num_toxic=tests["toxic"],
        num_misleading=tests["misleading"],
    )


@dataclass(frozen=True, slots=True)
class GradedScore:
    """The score of a graded trajectory."""

    task_key: str
    forecast: Forecast
    prompt_tokens: int
    """Length of the judge's prompt; 0 where an endpoint does not report it."""
    source: str
    """Run of the trajectory, by folder name."""
    phase: str
    """Phase of that run."""
    iteration: int
    """Iteration of that run."""


def graded_scores(run_id: int) -> list[GradedScore]:
    """Return the scores of all graded trajectories."""
    rows = current(Score, run_id).filter(p_yes__isnull=False, resolved__isnull=False)
    values = rows.order_by().values_list(
        "task_key", "p_yes", "resolved", "prompt_tokens", "source", "phase", "iteration"
    )
    return [
        GradedScore(task_key, Forecast(p_yes or 0.0, bool(resolved)), tokens, source, phase, iteration)
        for task_key, p_yes, resolved, tokens, source, phase, iteration in values
    ]


def repositories(task_keys: Collection[str]) -> Mapping[str, str]:
    """Return the repositories of tasks by key."""
    return dict(Task.objects.filter(key__in=set(task_keys)).values_list("key", "repo"))


def task_names(task_keys: Collection[str]) -> Mapping[str, str]:
    """Return the readable names of tasks by key; an arbitrary one if several datasets have the key."""
    return dict(Task.objects.filter(key__in=set(task_keys)).values_list("key", "instance_id"))
