"""Finished rollouts of one iteration or evaluation as rows of statistics and of selection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from django.db.models import F, Max, QuerySet

from engine.evaluation.attempts import Attempt
from engine.types import INFRASTRUCTURE_REASONS, TerminationReason, Verdict
from engine.verifiers.selection.candidates import Candidate
from webapp.models import Evaluation, Score, Step, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAttempt:
    """A finished rollout."""

    attempt: Attempt
    candidate: Candidate
    instance_id: str
    """Readable name of the task; its key where the dataset is not synchronised."""
    repo: str


def stored_attempts(
    run_id: int, *, phase: str, iteration: int, verifier: int | None = None
) -> list[StoredAttempt]:
    """Return every finished rollout, by task and index; one that was not graded counts as lost.

    Args:
        verifier: run of the verifier whose scores the candidates have; None is without.
    """
    rows = list(
        Trajectory.objects.filter(
            run_id=run_id, phase=phase, iteration=iteration, state=Trajectory.State.FINISHED
        )
        .select_related("task")
        .only(
            "task_key", "index", "termination", "verdict", "reward", "num_steps", "generated_tokens",
            "total_seconds", "cost", "patch_hash", "task__instance_id", "task__repo",
        )
        .order_by("task_key", "index")
    )  # fmt: skip
    contexts = _contexts([row.pk for row in rows])
    scores = _scores(run_id, phase, iteration).filter(run_id=verifier) if verifier is not None else ()
    p_yes = {(score.task_key, score.index): score.p_yes for score in scores}
    return [_stored(row, contexts.get(row.pk, 0), p_yes.get((row.task_key, row.index))) for row in rows]


def rollout_rows(
    run_id: int, *, phase: str, iteration: int, verifier: int | None = None
) -> list[dict[str, Any]]:
    """Return every graded rollout as a row of the table that selection and verifiers read."""
    patches = dict(
        Trajectory.objects.filter(run_id=run_id, phase=phase, iteration=iteration).values_list("pk", "patch")
    )
    return [
        {
            **asdict(one.candidate),
            "instance_id": one.instance_id,
            "repo": one.repo,
            "patch": patches[int(one.candidate.trajectory_id)],
        }
        for one in stored_attempts(run_id, phase=phase, iteration=iteration, verifier=verifier)
        if one.attempt.solved is not None
    ]


def verifiers(run_id: int, *, phase: str, iteration: int) -> list[tuple[int, str]]:
    """Return number and name of the verifiers' runs that have scored rollouts there, newest first."""
    found = _scores(run_id, phase, iteration).order_by("-run_id").values_list("run_id", "run__name")
    return list(found.distinct())


def _scores(run_id: int, phase: str, iteration: int) -> QuerySet[Score]:
    return Score.objects.filter(source=str(run_id), phase=phase, iteration=iteration).order_by()


def outcomes(run_id: int, *, phase: str, iteration: int) -> tuple[list[Attempt], dict[str, str]]:
    """Return the finished rollouts with nothing but their outcomes, and the readable name of each task."""
    rows = (
        Trajectory.objects.filter(
            run_id=run_id, phase=phase, iteration=iteration, state=Trajectory.State.FINISHED
        )
        .order_by("task_key", "index")
        .values_list("task_key", "index", "termination", "verdict", "reward", "task__instance_id")
    )
    attempts, names = [], {}
    for task_key, index, termination, verdict, reward, name in rows:
        solved = _solved(termination, verdict, reward)
        attempts.append(Attempt(task_id=task_key, index=index, solved=solved))
        names[task_key] = name or task_key
    return attempts, names


def has_rollouts(run_id: int, *, phase: str, iteration: int) -> bool:
    """Return whether a rollout has started there."""
    return Trajectory.objects.filter(run_id=run_id, phase=phase, iteration=iteration).exists()


def recent_evaluations(limit: int = 200) -> Sequence[Evaluation]:
    """Return the newest evaluations that have ended, newest run first."""
    return list(Evaluation.objects.select_related("run").order_by("-run_id", "-iteration", "name")[:limit])


def _contexts(trajectories: Sequence[int]) -> dict[int, int]:
    """Return the tokens of each trajectory's longest context."""
    return dict(
        Step.objects.filter(trajectory_id__in=trajectories)
        .order_by()
        .values_list("trajectory_id")
        .annotate(length=Max(F("prompt_tokens") + F("generated_tokens")))
    )


def _stored(row: Trajectory, context_tokens: int, p_yes: float | None) -> StoredAttempt:
    solved = _solved(row.termination, row.verdict, row.reward)
    return StoredAttempt(
        attempt=Attempt(
            task_id=row.task_key,
            index=row.index,
            solved=solved,
            submitted=row.termination == TerminationReason.SUBMITTED,
            steps=row.num_steps,
            generated_tokens=row.generated_tokens,
            context_tokens=context_tokens,
            seconds=row.total_seconds,
            cost=row.cost,
        ),
        candidate=Candidate(
            task_id=row.task_key,
            trajectory_id=str(row.pk),
            resolved=solved,
            p_yes=p_yes,
            steps=row.num_steps,
            tokens=row.generated_tokens,
            patch_hash=row.patch_hash,
        ),
        instance_id=row.task.instance_id if row.task is not None else row.task_key,
        repo=row.task.repo if row.task is not None else "unknown",
    )


def _solved(termination: str, verdict: str, reward: float | None) -> bool | None:
    """Return whether a rollout was solved; None where infrastructure lost it or its grading."""
    if reward is None or TerminationReason(termination) in INFRASTRUCTURE_REASONS:
        return None
    return verdict == Verdict.PASSED
