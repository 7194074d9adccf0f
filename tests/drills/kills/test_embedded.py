"""Embedded servers that are killed: they keep their data, restart, and leave no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psycopg

from engine.processes import process_start
from tests.ports import reserved_port
from webapp.supervisor.embedded import EmbeddedPostgres, EmbeddedRedis, end_leftovers
from webapp.supervisor.home import port_is_free


def connected(server: EmbeddedPostgres, password: str) -> psycopg.Connection:
    return psycopg.connect(
        host="127.0.0.1", port=server.port, user="trainyard", password=password, dbname="trainyard"
    )


def test_postgres_keeps_data_over_a_kill(tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path / "pg", port=reserved_port(), password="p@ss", durable=True)
    server.start()
    with connected(server, "p@ss") as db:
        db.execute("create table kept (n int)")
        db.execute("insert into kept values (7)")
    assert server.process is not None
    server.process.kill()
    server.process.wait()
    server.start()
    with connected(server, "p@ss") as db:
        assert db.execute("select n from kept").fetchone() == (7,)
    pid = server.process.pid
    server.stop()
    assert not Path(f"/proc/{pid}").exists()
    assert port_is_free(server.port)


def test_postgres_restarts_after_a_kill_that_left_a_busy_session(tmp_path: Path) -> None:
    """The shared memory of the session would prevent a new server from starting."""
    server = EmbeddedPostgres(tmp_path / "pg", port=reserved_port(), password="x", durable=False)
    server.start()
    assert server.process is not None
    busy = connected(server, "x")
    busy.pgconn.send_query(b"select count(*) from generate_series(1, 1000000000000)")
    session = busy.info.backend_pid
    os.kill(session, signal.SIGSTOP)  # keeps the session from noticing that the server died
    server.process.kill()
    server.process.wait()
    port = server.port
    try:
        server.start()
        assert process_start(session) is None
        assert server.port == port
    finally:
        busy.close()
        server.stop()


def test_postgres_repeats_an_interrupted_initialisation(tmp_path: Path) -> None:
    """``kill -9`` during initdb leaves no partial cluster that passes for a complete one."""
    folder = tmp_path / "pg"
    port = reserved_port()
    code = (
        "import sys; from pathlib import Path; from webapp.supervisor.embedded import EmbeddedPostgres\n"
        f"EmbeddedPostgres(Path({str(folder)!r}), port={port}, password='x', durable=False).start()"
    )
    first = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    deadline = time.monotonic() + 120
    while not list(folder.glob("*/PG_VERSION")):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    server = EmbeddedPostgres(folder, port=reserved_port(), password="x", durable=False)
    server.start()
    server.stop()


def test_leftover_servers_of_a_killed_supervisor_are_terminated(tmp_path: Path) -> None:
    postgres = EmbeddedPostgres(tmp_path / "postgres", port=reserved_port(), password="x", durable=False)
    redis_server = EmbeddedRedis(tmp_path / "redis", port=reserved_port(), password="x", durable=False)
    postgres.start()
    redis_server.start()
    assert postgres.process is not None
    assert redis_server.process is not None
    end_leftovers(tmp_path / "postgres" / "data", "postgres", first=signal.SIGINT, seconds=60.0)
    end_leftovers(tmp_path / "redis", "redis-server", first=signal.SIGTERM, seconds=60.0)
    assert process_start(postgres.process.pid) is None
    assert process_start(redis_server.process.pid) is None
    assert "database system is shut down" in postgres.log.read_text()
    postgres.process.wait()
    redis_server.process.wait()
