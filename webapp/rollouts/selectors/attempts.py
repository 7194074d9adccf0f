"""Finished rollouts of one iteration or evaluation, as input of statistics and selection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

from django.db.models import Count, Max, Q, QuerySet

from engine.errors import ConfigError, Problem
from engine.evaluation.attempts import Attempt, is_solved
from engine.types import RunKind, RunState, TerminationReason, Verdict
from engine.verifiers.selection.candidates import Candidate
from webapp.datasets.models.datasets import Task
from webapp.rollouts.models.scores import Score
from webapp.rollouts.models.trajectories import Group, Trajectory
from webapp.rollouts.selectors.scores import MISSING, made_now, verifying_by_tests
from webapp.runs.models.iterations import Evaluation, Iteration
from webapp.runs.models.runs import Run

UNKNOWN_REPO = "unknown"
_NO_PASSES = (None, None)


@dataclass(frozen=True, slots=True)
class _Scores:
    """Scores of rollouts with the attempt that produced each rollout, by task and index."""

    p_yes: dict[tuple[str, int], tuple[int | None, float | None]]
    passes: dict[tuple[str, int], tuple[int | None, tuple[int | None, int | None]]]
    """Numbers of passed regression and reproduction tests."""


def point_key(run_id: int, phase: str, iteration: int) -> str:
    """Return a point as ``RUN:PHASE:ITERATION``."""
    return f"{run_id}:{phase}:{iteration}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One evaluation of a run, or the rollouts of one of its iterations."""

    run: Run
    phase: str
    """``train`` or ``eval:<name>``."""
    iteration: int

    @property
    def key(self) -> str:
        """Return the point as ``RUN:PHASE:ITERATION``."""
        return point_key(self.run.pk, self.phase, self.iteration)

    @property
    def where(self) -> dict[str, Any]:
        """Return the filter of its groups and trajectories."""
        return {"run_id": self.run.pk, "phase": self.phase, "iteration": self.iteration}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLabels:
    """Properties of a task by which its attempts are listed and grouped."""

    instance_id: str
    """Readable name; the key where the dataset is not synchronised."""
    repo: str
    difficulty: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAttempt:
    """A finished rollout."""

    attempt: Attempt
    candidate: Candidate
    task: TaskLabels


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPoint:
    """Finished rollouts of an evaluation or iteration.

    Before the end, only tasks whose attempts have all ended are included: attempts that end early are a
    biased sample.
    """

    attempts: tuple[StoredAttempt, ...]
    ended: bool
    num_open_tasks: int
    """Tasks left out because some of their attempts have not ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verifier:
    """A verifier's run that scored rollouts of an evaluation or iteration."""

    run_id: int
    name: str
    by_tests: bool
    """True if its scores are passed tests, False if they are P(YES) of a judge."""
    num_scored: int
    """Rollouts with a score."""
    num_failed: int
    """Rollouts with an error instead of a score."""


def newest_point(
    run: Run, *, phase: str = "", iteration: int | None = None, index: int | None = None
) -> Point | None:
    """Return the newest evaluation with finished rollouts, else the newest such iteration; None without one.

    Args:
        phase: only this phase.
        iteration: only this iteration.
        index: only where attempts with this number have finished.
    """
    rows = Trajectory.objects.filter(run=run, state=Trajectory.State.FINISHED)
    if index is not None:
        rows = rows.filter(index=index)
    if iteration is not None:
        rows = rows.filter(iteration=iteration)
    if phase:
        rows = rows.filter(phase=phase)
    elif rows.filter(phase__startswith="eval:").exists():
        rows = rows.filter(phase__startswith="eval:")
    newest = rows.order_by("-iteration", "phase").values_list("phase", "iteration").first()
    return None if newest is None else Point(run=run, phase=newest[0], iteration=newest[1])


def stored_point(point: Point, *, verifier: int | None = None, tests: int | None = None) -> StoredPoint:
    """Return the finished rollouts, ordered by task and index; ungraded ones count as lost.

    Args:
        point: the evaluation or iteration.
        verifier: run of the verifier whose P(YES) the candidates get; None for no P(YES).
        tests: run of the verifier whose passed tests the candidates get; None for no passed tests.

    Raises:
        ConfigError: one of these runs has no scores of these rollouts.
    """
    ended, left_out = open_tasks(point)
    scores = _scores_of(point, verifier=verifier, tests=tests)
    rows = [row for row in _rows(point, *_COLUMNS) if row[1] not in left_out]
    labels = _labels({row[0] for row in rows})
    return StoredPoint(
        attempts=tuple(_stored(row, labels, scores) for row in rows),
        ended=ended,
        num_open_tasks=len(left_out),
    )


def rollout_rows(
    point: Point, *, verifier: int | None = None, tests: int | None = None
) -> list[dict[str, Any]]:
    """Return every graded rollout as a row of the table that selection and verifiers read.

    Raises:
        ConfigError: a verifier's run has no scores of these rollouts.
    """
    scores = _scores_of(point, verifier=verifier, tests=tests)
    rows = list(_rows(point, *_COLUMNS, "patch"))
    labels = _labels({row[0] for row in rows})
    table = []
    for *row, patch in rows:
        rollout = _stored(row, labels, scores)
        if rollout.attempt.solved is not None:
            names = {"instance_id": rollout.task.instance_id, "repo": rollout.task.repo, "patch": patch}
            table.append({**asdict(rollout.candidate), **names})
    return table


def verifiers(point: Point) -> list[Verifier]:
    """Return the verifiers' runs that scored rollouts of the point, newest first."""
    rows = (
        _scores(point)
        .filter(made_now([point.run.pk]))
        .values("run_id", "run__name")
        .annotate(scored=Count("id", filter=~MISSING), failed=Count("id", filter=MISSING))
        .order_by("-run_id")
        .values_list("run_id", "run__name", "scored", "failed")
    )
    by_tests = verifying_by_tests([run_id for run_id, *_ in rows])
    return [
        Verifier(run_id=run_id, name=name, by_tests=run_id in by_tests, num_scored=scored, num_failed=failed)
        for run_id, name, scored, failed in rows
    ]


def with_most_scores(known: Sequence[Verifier]) -> tuple[int | None, int | None]:
    """Return the runs of the judge and of the verifier by tests that have the most scores; None for none."""
    ordered = sorted(known, key=lambda verifier: (verifier.num_scored, verifier.run_id))
    most = {verifier.by_tests: verifier.run_id for verifier in ordered if verifier.num_scored}
    return most.get(False), most.get(True)


def has_rollouts(point: Point) -> bool:
    """Return whether the point has a started rollout."""
    return Trajectory.objects.filter(**point.where).exists()


def recent_evaluations(limit: int = 200) -> Sequence[Evaluation]:
    """Return the newest evaluations that have ended, newest run first."""
    return list(Evaluation.objects.select_related("run").order_by("-run_id", "-iteration", "name")[:limit])


def newest_evaluations(limit: int = 200) -> Sequence[Evaluation]:
    """Return the newest evaluation of each run and name, newest run first."""
    newest = Evaluation.objects.order_by("-run_id", "name", "-iteration").distinct("run_id", "name")
    return list(newest.select_related("run")[:limit])


def open_tasks(point: Point) -> tuple[bool, frozenset[str]]:
    """Return whether the point has ended and, before its end, the tasks with unfinished attempts.

    Cancelled attempts count as unfinished. Training runs distribute an evaluation's attempts evenly, so that
    the numbers of attempts per task differ by at most one.
    """
    if _has_ended(point):
        return True, frozenset()
    groups = Group.objects.filter(**point.where)
    if point.run.kind == RunKind.EVALUATE:
        wanted = point.run.config["rollout"]["group_size"]
    else:
        wanted = (groups.aggregate(most=Max("size"))["most"] or 1) - 1
    left_out = groups.filter(Q(finished_at=None) | Q(num_finished__lt=wanted))
    cancelled = Trajectory.objects.filter(**point.where, termination=TerminationReason.CANCELLED)
    task_keys = (rows.values_list("task_key", flat=True) for rows in (left_out, cancelled))
    return False, frozenset(chain.from_iterable(task_keys))


def _has_ended(point: Point) -> bool:
    """Return whether the point is complete: its result is stored, or the whole run succeeded."""
    if point.run.state == RunState.SUCCEEDED:
        return True
    run, iteration = point.run.pk, point.iteration
    if point.phase == "train":
        return Iteration.objects.filter(run=run, index=iteration, finished_at__isnull=False).exists()
    name = point.phase.removeprefix("eval:")
    return Evaluation.objects.filter(run=run, name=name, iteration=iteration).exists()


def _scores(point: Point) -> QuerySet[Score]:
    where = {"phase": point.phase, "iteration": point.iteration}
    return Score.objects.filter(source=str(point.run.pk), **where).order_by()


def _scores_of(point: Point, *, verifier: int | None, tests: int | None) -> _Scores:
    """Return the scores of each rollout by task and index."""
    scores = _Scores({}, {})
    if verifier is not None:
        rows = _scored_by(point, verifier, by_tests=False)
        for task, index, epoch, p_yes in rows.values_list("task_key", "index", "source_epoch", "p_yes"):
            scores.p_yes[task, index] = (epoch, p_yes)
    if tests is not None:
        rows = _scored_by(point, tests, by_tests=True)
        columns = ("task_key", "index", "source_epoch", "regression_passes", "reproduction_passes")
        for task, index, epoch, regression, reproduction in rows.values_list(*columns):
            scores.passes[task, index] = (epoch, (regression, reproduction))
    return scores


def _scored_by(point: Point, verifier: int, *, by_tests: bool) -> QuerySet[Score]:
    rows = _scores(point).filter(run_id=verifier)
    if not rows.exists() or (verifier in verifying_by_tests([verifier])) is not by_tests:
        offers = [str(offer.run_id) for offer in verifiers(point) if offer.by_tests is by_tests]
        kind, offered = "passes of tests" if by_tests else "scores", ", ".join(offers) or "none"
        message = f"run {verifier} has no {kind} of {point.key}; verifiers that have: {offered}"
        raise ConfigError(Problem(message, "tests" if by_tests else "verifier"))
    return rows


_COLUMNS = (
    "task_id", "task_key", "index", "pk", "epoch", "termination", "verdict", "reward", "num_steps",
    "generated_tokens", "context_tokens", "total_seconds", "cost", "patch_hash",
)  # fmt: skip


def _rows(point: Point, *columns: str) -> Sequence[Sequence[Any]]:
    rows = Trajectory.objects.filter(**point.where, state=Trajectory.State.FINISHED)
    return list(rows.order_by("task_key", "index").values_list(*columns))


def _labels(tasks: set[int | None]) -> dict[int | None, TaskLabels]:
    known = [task for task in tasks if task is not None]
    rows = Task.objects.filter(pk__in=known).values_list("pk", "instance_id", "repo", "difficulty")
    return {
        pk: TaskLabels(instance_id=name, repo=repo or UNKNOWN_REPO, difficulty=difficulty)
        for pk, name, repo, difficulty in rows
    }


def _stored(
    row: Sequence[Any],
    labels: Mapping[int | None, TaskLabels],
    scores: _Scores,
) -> StoredAttempt:
    (
        task, task_key, index, pk, epoch, termination, verdict, reward, num_steps, generated_tokens,
        context_tokens, total_seconds, cost, patch_hash,
    ) = row  # fmt: skip
    judged_epoch, p_yes = scores.p_yes.get((task_key, index), (None, None))
    tested_epoch, passes = scores.passes.get((task_key, index), (None, _NO_PASSES))
    # A score of an earlier attempt's rollout does not apply; scores of earlier versions name no attempt.
    regression, reproduction = passes if tested_epoch in (None, epoch) else _NO_PASSES
    solved = is_solved(TerminationReason(termination), reward, Verdict(verdict) if verdict else None)
    return StoredAttempt(
        attempt=Attempt(
            task_id=task_key,
            index=index,
            solved=solved,
            termination=TerminationReason(termination),
            steps=num_steps,
            generated_tokens=generated_tokens,
            context_tokens=context_tokens,
            seconds=total_seconds,
            cost=cost,
        ),
        candidate=Candidate(
            task_id=task_key,
            trajectory_id=str(pk),
            resolved=solved,
            p_yes=p_yes if judged_epoch in (None, epoch) else None,
            regression_passes=regression,
            reproduction_passes=reproduction,
            steps=num_steps,
            tokens=generated_tokens,
            patch_hash=patch_hash,
        ),
        task=labels.get(task) or TaskLabels(instance_id=task_key, repo=UNKNOWN_REPO, difficulty={}),
    )
