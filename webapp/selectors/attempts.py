"""Finished rollouts of one iteration or evaluation as rows of statistics and of selection."""

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
from webapp.models import Evaluation, Group, Iteration, Run, Score, Task, Trajectory


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
        return f"{self.run.pk}:{self.phase}:{self.iteration}"

    @property
    def where(self) -> dict[str, Any]:
        """Return the filter of its groups and trajectories."""
        return {"run_id": self.run.pk, "phase": self.phase, "iteration": self.iteration}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLabels:
    """Properties of a task by which its attempts are listed and divided."""

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

    Before its end they are those of the tasks whose attempts have all ended: attempts that end early are not
    like the others.
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
    num_scored: int
    """Rollouts with a score."""
    num_failed: int
    """Rollouts with an error in its place."""


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
    found = rows.order_by("-iteration", "phase").values_list("phase", "iteration").first()
    return None if found is None else Point(run=run, phase=found[0], iteration=found[1])


def stored_point(point: Point, *, verifier: int | None = None) -> StoredPoint:
    """Return the finished rollouts by task and index; one that was not graded counts as lost.

    Args:
        point: the evaluation or iteration.
        verifier: run of the verifier whose scores the candidates have; None is without.

    Raises:
        ConfigError: that run has no scores of these rollouts.
    """
    ended, left_out = _open_tasks(point)
    scores = {} if verifier is None else _scores_of(point, verifier)
    rows = [row for row in _rows(point, *_COLUMNS) if row[1] not in left_out]
    labels = _labels({row[0] for row in rows})
    return StoredPoint(
        attempts=tuple(_stored(row, labels, scores) for row in rows),
        ended=ended,
        num_open_tasks=len(left_out),
    )


def rollout_rows(point: Point, *, verifier: int | None = None) -> list[dict[str, Any]]:
    """Return every graded rollout as a row of the table that selection and verifiers read.

    Raises:
        ConfigError: the verifier's run has no scores of these rollouts.
    """
    scores = {} if verifier is None else _scores_of(point, verifier)
    rows = list(_rows(point, *_COLUMNS, "patch"))
    labels = _labels({row[0] for row in rows})
    table = []
    for *row, patch in rows:
        one = _stored(row, labels, scores)
        if one.attempt.solved is not None:
            names = {"instance_id": one.task.instance_id, "repo": one.task.repo, "patch": patch}
            table.append({**asdict(one.candidate), **names})
    return table


def verifiers(point: Point) -> list[Verifier]:
    """Return the verifiers' runs that judged rollouts there, newest first."""
    found = (
        _scores(point)
        .values("run_id", "run__name")
        .annotate(scored=Count("p_yes"), failed=Count("id", filter=Q(p_yes=None)))
        .order_by("-run_id")
        .values_list("run_id", "run__name", "scored", "failed")
    )
    return [
        Verifier(run_id=run_id, name=name, num_scored=scored, num_failed=failed)
        for run_id, name, scored, failed in found
    ]


def has_rollouts(point: Point) -> bool:
    """Return whether a rollout has started there."""
    return Trajectory.objects.filter(**point.where).exists()


def recent_evaluations(limit: int = 200) -> Sequence[Evaluation]:
    """Return the newest evaluations that have ended, newest run first."""
    return list(Evaluation.objects.select_related("run").order_by("-run_id", "-iteration", "name")[:limit])


def _open_tasks(point: Point) -> tuple[bool, frozenset[str]]:
    """Return whether the point has ended, and before that the tasks some of whose attempts have not ended.

    An attempt that a stop cancelled has not. Runs that train spread an evaluation's attempts over its tasks,
    which differ by one at most.
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
    found = (rows.values_list("task_key", flat=True) for rows in (left_out, cancelled))
    return False, frozenset(chain.from_iterable(found))


def _has_ended(point: Point) -> bool:
    """Return whether no rollout is to follow: the result is on record, or the whole run succeeded."""
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


def _scores_of(point: Point, verifier: int) -> dict[tuple[str, int], tuple[int | None, float | None]]:
    """Return the attempt that made each judged rollout, and its P(YES), by task and index."""
    rows = _scores(point).filter(run_id=verifier)
    found = {
        (task_key, index): (epoch, p_yes)
        for task_key, index, epoch, p_yes in rows.values_list("task_key", "index", "source_epoch", "p_yes")
    }
    if not found:
        known = ", ".join(str(one.run_id) for one in verifiers(point)) or "none"
        message = f"run {verifier} has no scores of {point.key}; verifiers that have: {known}"
        raise ConfigError(Problem(message, "verifier"))
    return found


_COLUMNS = (
    "task_id", "task_key", "index", "pk", "epoch", "termination", "verdict", "reward", "num_steps",
    "generated_tokens", "context_tokens", "total_seconds", "cost", "patch_hash",
)  # fmt: skip


def _rows(point: Point, *columns: str) -> Sequence[Sequence[Any]]:
    rows = Trajectory.objects.filter(**point.where, state=Trajectory.State.FINISHED)
    return list(rows.order_by("task_key", "index").values_list(*columns))


def _labels(tasks: set[int | None]) -> dict[int | None, TaskLabels]:
    known = [task for task in tasks if task is not None]
    found = Task.objects.filter(pk__in=known).values_list("pk", "instance_id", "repo", "difficulty")
    return {
        pk: TaskLabels(instance_id=name, repo=repo or "unknown", difficulty=difficulty)
        for pk, name, repo, difficulty in found
    }


def _stored(
    row: Sequence[Any],
    labels: Mapping[int | None, TaskLabels],
    scores: Mapping[tuple[str, int], tuple[int | None, float | None]],
) -> StoredAttempt:
    (
        task, task_key, index, pk, epoch, termination, verdict, reward, num_steps, generated_tokens,
        context_tokens, total_seconds, cost, patch_hash,
    ) = row  # fmt: skip
    scored_epoch, p_yes = scores.get((task_key, index), (None, None))
    solved = is_solved(TerminationReason(termination), reward, Verdict(verdict) if verdict else None)
    return StoredAttempt(
        attempt=Attempt(
            task_id=task_key,
            index=index,
            solved=solved,
            submitted=termination == TerminationReason.SUBMITTED,
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
            p_yes=p_yes if scored_epoch in (None, epoch) else None,
            steps=num_steps,
            tokens=generated_tokens,
            patch_hash=patch_hash,
        ),
        task=labels.get(task) or TaskLabels(instance_id=task_key, repo="unknown", difficulty={}),
    )
