"""Query plans of repeated page queries over large tables."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from webapp.models import Group, Run, TokenBlob, Trajectory
from webapp.rollouts.selectors import trajectories
from webapp.runs.selectors import iterations

pytestmark = pytest.mark.django_db
MANY = 4_000


@pytest.fixture
def run() -> Run:
    """Create a collection with many costs and token ids, analyzed for the query planner."""
    now = timezone.now()
    run = Run.objects.create(name="large", kind="rollout", state="running")
    group = Group.objects.create(run=run, phase="train", iteration=0, task_key="t", size=MANY, started_at=now)
    rows = Trajectory.objects.bulk_create(
        Trajectory(
            run=run, group=group, phase="train", iteration=0, task_key="t", index=index, epoch=1,
            state="finished" if index else "running", started_at=now, active_at=now,
            cost=0.25 if index < 100 else None, cached_tokens=index % 2,
        )
        for index in range(MANY)
    )  # fmt: skip
    TokenBlob.objects.bulk_create(TokenBlob(trajectory=row, length=1, data=b"x") for row in rows[1:])
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE webapp_trajectory, webapp_tokenblob")
    return run


def plan(sql: str) -> str:
    """Return the plan of a captured query."""
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {sql}")
        return "\n".join(line for (line,) in cursor.fetchall())


def test_repeated_queries_of_a_large_run_read_indexes(run: Run) -> None:
    with CaptureQueriesContext(connection) as captured:
        rows, total = trajectories.newest(run.pk, limit=MANY)
    assert total == MANY
    assert [row.index for row in rows if not row.has_token_ids] == [0]  # type: ignore[attr-defined]
    explained = plan(captured.captured_queries[0]["sql"])
    assert "Index Only Scan using webapp_tokenblob_pkey" in explained, explained
    assert "Seq Scan on webapp_tokenblob" not in explained, explained
    with CaptureQueriesContext(connection) as captured:
        counts = iterations.live_counts(run)
    assert (counts.running, counts.total, counts.cost) == (1, MANY, 25.0)
    assert counts.cached_tokens == MANY // 2
    with connection.cursor() as cursor:
        # VACUUM cannot run in a transaction; without it the planner overrates the cost of index-only scans.
        cursor.execute("SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off")
    for query in captured.captured_queries:
        explained = plan(query["sql"])
        assert "Index Only Scan" in explained or "trajectory_live" in explained, explained
