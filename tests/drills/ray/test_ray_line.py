"""All services with a cluster of two nodes: kills of worker, rank and cluster lose and duplicate nothing.

The run's files are lost with the cluster and restored from an object store.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.builders.ray_clusters import RayCluster
from tests.integration.toy_line import (
    TERMINAL,
    Line,
    assert_nothing_lost_or_duplicated,
    running_line,
    sandboxes_left,
)

pytestmark = pytest.mark.timeout(900)
RANKS = {"trainer.launcher": "ray", "trainer.data_parallel": 2}
ITERATIONS = 12
"""Enough for the run to outlast every kill."""
ON_THE_OTHER_NODE = {"launcher.backend": "ray", "launcher.ray.resources": {"other": 1}, **RANKS}
"""The run takes one of that node's two CPUs, its ranks those of the head."""


def condition_of(line: Line, run: int) -> str:
    newest = "select condition from webapp_runattempt where run_id = %s order by epoch desc limit 1"
    return str(line.value(newest, run))


def attempts_of(line: Line, run: int) -> list[tuple[int, str, str, str]]:
    """Return number, launcher, handle and reason of each attempt."""
    columns = "epoch, launcher, handle, reason || ' ' || reason_detail"
    rows = line.rows(f"select {columns} from webapp_runattempt where run_id = %s", run)
    return sorted((int(row[0]), str(row[1]), str(row[2]), str(row[3])) for row in rows)


def lose_disk(line: Line, run: int) -> None:
    """Remove the files of the run's process, but not those of the workers."""
    for path in (line.stack.home / "runs" / str(run)).iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in ("config.json", "launch.json"):
            path.unlink()


def reason_of(line: Line, run: int) -> str:
    return str(line.value("select reason from webapp_run where id = %s", run))


def test_run_survives_kills_of_worker_rank_and_cluster_and_can_be_stopped(
    cluster: RayCluster, bucket: str, tmp_path: Path
) -> None:
    cluster.start_node({"other": 1})
    granted = {"TRAINYARD_GRANTED": json.dumps({"storage.url": [bucket]})}
    with running_line(tmp_path, granted) as line:
        stored = {"storage.url": bucket, "storage.interval_s": 0.2, "trainer.iterations": ITERATIONS}
        run = line.launch(**stored, **ON_THE_OTHER_NODE)
        line.until(lambda: line.finished_iterations(run) >= 1, "a first iteration")
        before, iterations = attempts_of(line, run), line.finished_iterations(run)
        line.kill_at_once("worker")
        line.until(lambda: line.finished_iterations(run) > iterations, "an iteration after the first worker")
        assert attempts_of(line, run) == before

        cluster.ranks(0)[1].kill()
        line.until(lambda: len(attempts_of(line, run)) == 2, "the next attempt")
        assert "rank 1 of the trainer ended unexpectedly" in attempts_of(line, run)[0][3]
        line.until(lambda: len(cluster.ranks(0)) == 2, "its ranks")
        line.until(lambda: line.state(run) == "running", "its start")
        cluster.kill()
        lose_disk(line, run)
        line.until(lambda: "does not answer" in condition_of(line, run), "the outage on the run's page")
        assert line.state(run) == "running"
        cluster.start_head({"head": 1})
        cluster.start_node({"other": 1})
        line.until(lambda: line.state(run) in TERMINAL, "the end of the run")
        assert line.state(run) == "succeeded", reason_of(line, run)
        attempts = attempts_of(line, run)
        assert [attempt[:2] for attempt in attempts] == [(1, "ray"), (2, "ray"), (3, "ray")], attempts
        assert "it was restarted" in attempts[2][3]
        assert_nothing_lost_or_duplicated(line, run, ITERATIONS)
        resumed = "select payload->>'resumed_from' from webapp_event where run_id = %s"
        later = f"{resumed} and type = 'run_started' and epoch > 1"
        assert all(row[0] for row in line.rows(later, run))
        assert sandboxes_left(line, run) == []

        long = line.launch(**{"trainer.iterations": 200}, **ON_THE_OTHER_NODE)
        line.until(lambda: line.finished_iterations(long) >= 1, "a first iteration")
        waiting = line.launch(**{"launcher.backend": "ray", **RANKS})
        progress = "select progress_message from webapp_run where id = %s"
        words = "waiting for 2 × 1 CPU packed on the Ray cluster"
        line.until(lambda: line.value(progress, waiting) == words, "the wait on the run's page")
        line.stack.command("run", "stop", str(waiting))
        line.until(lambda: line.state(waiting) == "stopped", "the stop of a run that waits")
        line.stack.command("run", "stop", str(long))
        line.until(lambda: line.state(long) == "stopped", "the stop")
        assert reason_of(line, long) == "a person stopped it"
        assert '"event"' in line.stack.command("run", "log", str(long))
        line.until(lambda: sandboxes_left(line, long) == [], "the end of its sandboxes")
        line.until(lambda: not cluster.ranks(0) + cluster.ranks(1), "the end of its ranks")
