"""Reads of trajectories: one with its parts, and the newest of a run."""

from __future__ import annotations

from typing import Any

from django.db import connection
from django.db.models import F, OuterRef, QuerySet, Subquery, Value
from django.db.models.functions import Coalesce

from engine.types import FindingKind
from webapp.datasets.models.datasets import TaskAnswer
from webapp.rollouts.models.trajectories import (
    ImportedFields,
    Step,
    TestLog,
    TestResult,
    TokenBlob,
    TokenTrace,
    Trajectory,
    TrajectoryOpening,
)
from webapp.rollouts.selectors.annotations import with_labels

MOST_CANDIDATES = 500
"""Rollouts among which an example is chosen."""
_TEST_OUTPUTS = frozenset(
    {"custom_test_outputs", "regression_test_output", "eval_logs", "report", "test_output", "test_result"}
)
"""Fields of imported files that may contain hidden tests."""


def get_trajectory(
    run_id: int, *, phase: str, iteration: int, task_key: str, index: int
) -> Trajectory | None:
    """Return one trajectory with run, group and task."""
    return (
        Trajectory.objects.select_related("run", "group", "task__dataset")
        .filter(run_id=run_id, phase=phase, iteration=iteration, task_key=task_key, index=index)
        .first()
    )


def get_by_id(trajectory_id: int) -> Trajectory | None:
    """Return one trajectory."""
    return Trajectory.objects.filter(pk=trajectory_id).first()


def with_token_flag(rows: QuerySet[Trajectory]) -> QuerySet[Trajectory]:
    """Add ``has_token_ids`` to trajectories: whether token ids were recorded."""
    # Not ``Exists``, for which PostgreSQL may read the whole table of blobs to hash it.
    recorded = TokenBlob.objects.filter(pk=OuterRef("pk")).values(recorded=Value(True))
    return rows.annotate(has_token_ids=Coalesce(Subquery(recorded), False))


def newest(run_id: int, limit: int = 50) -> tuple[list[Trajectory], int]:
    """Return a run's newest trajectories with their labels, and the number of all of them."""
    rows = Trajectory.objects.filter(run_id=run_id)
    shown = (
        with_labels(with_token_flag(rows))
        .select_related("task")
        .defer("patch", "test_log", "detail", "error", "task__problem_statement")
        .order_by("-pk")[:limit]
    )
    return list(shown), rows.count()


def findings(trajectory: Trajectory, *, with_answers: bool) -> list[dict[str, Any]]:
    """Return the signs of tampering; assertions of hidden tests only to readers of answers."""
    return [
        finding
        if with_answers or finding["kind"] != FindingKind.COUNTERFACTUAL
        else {**finding, "detail": ""}
        for finding in trajectory.findings
    ]


def opening(trajectory_id: int) -> list[dict[str, str]]:
    """Return the messages before the first response; empty where they were not recorded."""
    messages = TrajectoryOpening.objects.filter(pk=trajectory_id).values_list("messages", flat=True).first()
    return messages or []


def imported_fields(trajectory_id: int, *, with_answers: bool) -> dict[str, Any] | None:
    """Return fields of an imported trajectory's file; outputs of tests only to readers of answers."""
    fields = ImportedFields.objects.filter(pk=trajectory_id).values_list("fields", flat=True).first()
    if fields is None or with_answers:
        return fields
    return {name: value for name, value in fields.items() if name not in _TEST_OUTPUTS}


def tests(trajectory_id: int) -> list[TestResult]:
    """Return the results of the required tests in the task's order."""
    return list(TestResult.objects.filter(trajectory_id=trajectory_id).order_by("position"))


def test_log(trajectory_id: int) -> str | None:
    """Return the complete test log; None if there is no such trajectory."""
    log = TestLog.objects.filter(trajectory_id=trajectory_id).first()
    if log is not None:
        return log.text
    return Trajectory.objects.filter(pk=trajectory_id).values_list("test_log", flat=True).first()


def whole_log_chars(trajectory_id: int) -> int:
    """Return the length of the complete test log if the trajectory's row has a part of it; else 0."""
    return TestLog.objects.filter(trajectory_id=trajectory_id).values_list("chars", flat=True).first() or 0


def num_samples(trajectory_id: int) -> int:
    """Return the number of samples of a trajectory's tokens; 0 where no tokens were recorded."""
    return TokenBlob.objects.filter(pk=trajectory_id).values_list("samples", flat=True).first() or 0


def is_traced(trajectory_id: int) -> bool:
    """Return whether the trainer recorded the tokens of a trajectory."""
    return TokenTrace.objects.filter(pk=trajectory_id).exists()


def finding_counts(run_id: int) -> list[tuple[str, int]]:
    """Return the number of a run's trajectories with each kind of sign of tampering."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT f->>'kind', count(DISTINCT t.id) FROM webapp_trajectory t,"
            " jsonb_array_elements(t.findings) f WHERE t.run_id = %s AND t.findings <> '[]'"
            " GROUP BY 1 ORDER BY 2 DESC, 1",
            [run_id],
        )
        return [(str(kind), int(count)) for kind, count in cursor.fetchall()]


def siblings(group_id: int) -> list[Trajectory]:
    """Return a group's rollouts in order, without their texts."""
    rows = Trajectory.objects.filter(group_id=group_id).order_by("index")
    return list(rows.defer("patch", "test_log", "detail", "error", "findings", "replay"))


def gold_patch(task_id: int | None) -> str:
    """Return the task's gold patch; empty when it is not known. Callers check the role first."""
    if task_id is None:
        return ""
    return TaskAnswer.objects.filter(task_id=task_id).values_list("gold_patch", flat=True).first() or ""


def most_thinking(
    run_id: int, *, iterations: tuple[int, int], steps: tuple[int, int]
) -> tuple[Trajectory, int] | None:
    """Return the training rollout with the most thinking tokens in one step, and the index of that step.

    It is one of the first ``MOST_CANDIDATES`` rollouts; None without such a step.

    Args:
        run_id: the run.
        iterations: first and last iteration.
        steps: first and last index.
    """
    candidates = Trajectory.objects.filter(
        run_id=run_id, phase="train", iteration__range=iterations, num_steps__gt=steps[0]
    ).order_by("iteration", "task_key", "index")
    ids = list(candidates.values_list("pk", flat=True)[:MOST_CANDIDATES])
    found = Step.objects.filter(trajectory_id__in=ids, index__range=steps).order_by(
        F("thinking_tokens").desc(nulls_last=True), "trajectory_id", "index"
    )
    key = found.values_list("trajectory_id", "index").first()
    if key is None:
        return None
    row = Trajectory.objects.only("run_id", "phase", "iteration", "task_key", "index").get(pk=key[0])
    return row, key[1]
