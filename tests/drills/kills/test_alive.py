"""Embedded and external services killed during a run: it succeeds, nothing is lost or duplicated."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.integration.toy_line import (
    TERMINAL,
    Line,
    assert_nothing_lost_or_duplicated,
    running_line,
    sandboxes_left,
)
from tests.ports import reserved_port
from webapp.supervisor.embedded import EmbeddedPostgres, EmbeddedRedis
from webapp.supervisor.status import ServiceState

ITERATIONS = 30


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    with running_line(tmp_path, {}) as running:
        yield running


def postgres_backend(line: Line) -> psutil.Process:
    """Return a process of the database server that serves a connection."""
    postmaster = line.stack.processes["postgresql"].process
    assert postmaster is not None
    backends = [
        child
        for child in psutil.Process(postmaster.pid).children()
        if child.cmdline()[0].startswith("postgres: trainyard")
    ]
    return backends[0]


def assert_success(line: Line, run: int) -> None:
    line.until(lambda: line.state(run) in TERMINAL, "the end of the run", seconds=280.0)
    assert line.state(run) == "succeeded", line.value("select reason from webapp_run where id = %s", run)
    assert line.value("select epoch from webapp_run where id = %s", run) == 1, "the engine was not disturbed"
    assert_nothing_lost_or_duplicated(line, run, ITERATIONS)
    assert sandboxes_left(line, run) == []


def test_run_survives_a_kill_of_every_service(line: Line) -> None:
    run = line.launch(**{"trainer.iterations": ITERATIONS})
    line.until(lambda: line.finished_iterations(run) >= 1, "a first iteration")
    for name in ("postgresql", "redis", "web", "worker", "beat"):
        assert line.state(run) not in TERMINAL
        line.kill(name)
        title = line.stack.processes[name].spec.title
        assert any(note.startswith(f"{title} is down: it was ended by SIGKILL") for note in line.told)
        assert any(note.startswith(f"{title} is up again after") for note in line.told)
    postgres_backend(line).kill()
    assert_success(line, run)
    health = httpx.get(f"{line.stack.url}healthz", timeout=60).json()
    assert {row["name"]: row["state"] for row in health["services"]} == dict.fromkeys(
        ("postgresql", "redis", "web", "worker", "beat"), "up"
    )
    # The restarted worker and scheduler launch a second run, which succeeds.
    second = line.launch(**{"trainer.iterations": 1})
    line.until(lambda: line.state(second) in TERMINAL, "the end of the second run", seconds=280.0)
    assert line.state(second) == "succeeded"


def test_run_survives_outages_of_external_postgresql_and_redis(tmp_path: Path) -> None:
    postgres = EmbeddedPostgres(tmp_path / "postgres", port=reserved_port(), password="theirs")
    redis = EmbeddedRedis(tmp_path / "redis", port=reserved_port(), password="theirs")
    try:
        postgres.start()
        redis.start()
        with running_line(tmp_path, {"DATABASE_URL": postgres.url, "REDIS_URL": redis.url}) as line:
            run = line.launch(**{"trainer.iterations": ITERATIONS})
            line.until(lambda: line.finished_iterations(run) >= 1, "a first iteration")
            spool = line.stack.home / "runs" / str(run) / "events.jsonl"
            for server, name in ((redis, "redis"), (postgres, "postgresql")):
                service = line.stack.processes[name]
                assert server.process is not None
                os.kill(server.process.pid, signal.SIGKILL)
                server.process.wait()
                line.until(lambda service=service: service.status.state is ServiceState.DOWN, f"{name} down")  # type: ignore[misc]
                before = spool.stat().st_size
                line.until(lambda before=before: spool.stat().st_size > before, "the run to go on")  # type: ignore[misc]
                response = httpx.get(f"{line.stack.url}healthz", timeout=60)
                assert response.status_code == (503 if name == "postgresql" else 200)
                assert {row["name"]: row["state"] for row in response.json()["services"]}[name] == "down"
                server.start()
                line.until(lambda service=service: service.status.state is ServiceState.UP, f"{name} up")  # type: ignore[misc]
                assert service.status.restarts == 0
            assert_success(line, run)
    finally:
        redis.stop()
        postgres.stop()
