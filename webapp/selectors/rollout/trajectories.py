"""Reads of trajectories: one with its steps, and the search over thoughts and actions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.contrib.postgres.search import SearchQuery, SearchVector
from django.db import connection
from django.db.models import OuterRef, QuerySet, Subquery, Value
from django.db.models.functions import Coalesce

from engine.types import FindingKind
from webapp.models import (
    ImportedFields,
    Run,
    Step,
    TaskAnswer,
    TestLog,
    TestResult,
    TokenBlob,
    Trajectory,
    TrajectoryOpening,
)

_TEST_OUTPUTS = frozenset(
    {"custom_test_outputs", "regression_test_output", "eval_logs", "report", "test_output", "test_result"}
)
"""Fields of imported files that may contain hidden tests."""
SEARCH_POOL = 5000
"""Maximum number of matching steps that a text search considers; the page reports when more match."""


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
    """Return a run's newest trajectories and the number of all of them."""
    rows = Trajectory.objects.filter(run_id=run_id)
    shown = (
        with_token_flag(rows)
        .select_related("task")
        .defer("patch", "test_log", "detail", "error", "task__problem_statement")
        .order_by("-pk")[:limit]
    )
    return list(shown), rows.count()


def findings(trajectory: Trajectory, *, with_answers: bool) -> list[dict[str, Any]]:
    """Return the signs of tampering; assertions of hidden tests only to readers of answers."""
    return [
        found if with_answers or found["kind"] != FindingKind.COUNTERFACTUAL else {**found, "detail": ""}
        for found in trajectory.findings
    ]


def opening(trajectory_id: int) -> list[dict[str, str]]:
    """Return the messages before the first response; empty where they were not recorded."""
    found = TrajectoryOpening.objects.filter(pk=trajectory_id).values_list("messages", flat=True).first()
    return found or []


def imported_fields(trajectory_id: int, *, with_answers: bool) -> dict[str, Any] | None:
    """Return fields of an imported trajectory's file; outputs of tests only to readers of answers."""
    found = ImportedFields.objects.filter(pk=trajectory_id).values_list("fields", flat=True).first()
    if found is None or with_answers:
        return found
    return {name: value for name, value in found.items() if name not in _TEST_OUTPUTS}


def tests(trajectory_id: int) -> list[TestResult]:
    """Return results of the required tests in the task's order."""
    return list(TestResult.objects.filter(trajectory_id=trajectory_id).order_by("position"))


def test_log(trajectory_id: int) -> str | None:
    """Return the whole test log; None when there is no such trajectory."""
    log = TestLog.objects.filter(trajectory_id=trajectory_id).first()
    if log is not None:
        return log.text
    return Trajectory.objects.filter(pk=trajectory_id).values_list("test_log", flat=True).first()


def whole_log_chars(trajectory_id: int) -> int:
    """Return length of a test log that is longer than what the trajectory's row shows; else 0."""
    return TestLog.objects.filter(trajectory_id=trajectory_id).values_list("chars", flat=True).first() or 0


def num_samples(trajectory_id: int) -> int:
    """Return the number of samples of a trajectory's tokens; 0 where no tokens were recorded."""
    return TokenBlob.objects.filter(pk=trajectory_id).values_list("samples", flat=True).first() or 0


def finding_counts(run_id: int) -> list[tuple[str, int]]:
    """Return signs of tampering in a run by kind, with their number of trajectories."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT f->>'kind', count(DISTINCT t.id) FROM webapp_trajectory t,"
            " jsonb_array_elements(t.findings) f WHERE t.run_id = %s AND t.findings <> '[]'"
            " GROUP BY 1 ORDER BY 2 DESC, 1",
            [run_id],
        )
        return [(str(kind), int(count)) for kind, count in cursor.fetchall()]


def sibling_indexes(group_id: int) -> list[int]:
    """Return positions of the siblings of a group."""
    return list(
        Trajectory.objects.filter(group_id=group_id).order_by("index").values_list("index", flat=True)
    )


def gold_patch(task_id: int | None) -> str:
    """Return the task's gold patch; empty when it is not known. Callers check the role first."""
    if task_id is None:
        return ""
    return TaskAnswer.objects.filter(task_id=task_id).values_list("gold_patch", flat=True).first() or ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryFilters:
    """Filters of a search; empty means everything."""

    q: str = ""
    """Words over thoughts and actions (``websearch`` syntax: quotes, ``or``, minus)."""
    run: int | None = None
    task: str = ""
    """A task's key or a part of its readable name."""
    verdict: str = ""
    termination: str = ""
    phase: str = ""
    finding: str = ""
    """A kind of sign of tampering, or ``any``."""
    reward_min: float | None = None
    reward_max: float | None = None
    steps_min: int | None = None


@dataclass(frozen=True, slots=True)
class Match:
    """A step whose text matched."""

    index: int
    action: str
    text: str


@dataclass(frozen=True, slots=True)
class SearchResult:
    """One page of trajectories, newest first, with the first matching steps of each."""

    rows: Sequence[Trajectory]
    matches: dict[int, list[Match]]
    total: int
    capped: bool
    """True when more than ``SEARCH_POOL`` steps matched, so that older matches were not considered."""
    next_before: int | None
    """Cursor of the next page."""


def _narrowed(filters: TrajectoryFilters) -> QuerySet[Trajectory]:
    rows = Trajectory.objects.all()
    if filters.run is not None:
        rows = rows.filter(run_id=filters.run)
    if filters.task:
        by_key = rows.filter(task_key=filters.task)
        rows = by_key if by_key.exists() else rows.filter(task__instance_id__icontains=filters.task)
    if filters.verdict:
        rows = rows.filter(verdict=filters.verdict)
    if filters.termination == "running":
        rows = rows.filter(state=Trajectory.State.RUNNING)
    elif filters.termination:
        rows = rows.filter(termination=filters.termination)
    if filters.phase:
        rows = rows.filter(phase__startswith=filters.phase)
    if filters.finding == "any":
        rows = rows.exclude(findings=[])
    elif filters.finding:
        rows = rows.filter(findings__contains=[{"kind": filters.finding}])
    if filters.reward_min is not None:
        rows = rows.filter(reward__gte=filters.reward_min)
    if filters.reward_max is not None:
        rows = rows.filter(reward__lte=filters.reward_max)
    if filters.steps_min is not None:
        rows = rows.filter(num_steps__gte=filters.steps_min)
    return rows


def search(
    filters: TrajectoryFilters, *, before: int | None, size: int = 50, with_answers: bool = False
) -> SearchResult:
    """Return trajectories that pass every filter; with words, those with a matching step.

    The words are looked for in the oracle's rollouts only ``with_answers``.
    """
    rows = _narrowed(filters)
    capped = False
    found = Step.objects.none()
    if filters.q:
        vector = SearchVector("search_text", config="simple")
        words = SearchQuery(filters.q, config="simple", search_type="websearch")
        found = Step.objects.annotate(document=vector).filter(document=words)
        if filters.run is not None:
            found = found.filter(trajectory__run_id=filters.run)
        if not with_answers:
            found = found.exclude(
                trajectory__run__in=list(Run.playing_answers().values_list("pk", flat=True))
            )
        pool = list(
            found.order_by("-trajectory_id").values_list("trajectory_id", flat=True)[: SEARCH_POOL + 1]
        )
        capped = len(pool) > SEARCH_POOL
        rows = rows.filter(pk__in=set(pool[:SEARCH_POOL]))
    total = rows.count()
    if before:
        rows = rows.filter(pk__lt=before)
    shown = list(
        with_token_flag(rows)
        .select_related("run", "task")
        .defer("patch", "test_log", "detail", "error", "run__config", "task__problem_statement")
        .order_by("-pk")[: size + 1]
    )
    more = len(shown) > size
    shown = shown[:size]
    return SearchResult(
        rows=shown,
        matches=_matches(found, [row.pk for row in shown]) if filters.q else {},
        total=total,
        capped=capped,
        next_before=shown[-1].pk if more else None,
    )


def _matches(found: QuerySet[Step], trajectory_ids: list[int], per_row: int = 2) -> dict[int, list[Match]]:
    result: dict[int, list[Match]] = {}
    rows = (
        found.filter(trajectory_id__in=trajectory_ids)
        .order_by("trajectory_id", "index")
        .values_list("trajectory_id", "index", "action", "search_text")
    )
    for trajectory_id, index, action, text in rows:
        matches = result.setdefault(trajectory_id, [])
        if len(matches) < per_row:
            matches.append(Match(index, action, text[:240]))
    return result
