"""The embedded servers start, keep data over a restart, and leave nothing behind."""

from __future__ import annotations

import os
from pathlib import Path

import psycopg
import pytest
import redis
from psycopg.conninfo import make_conninfo

from engine.errors import PreflightError
from webapp.supervisor.embedded import EmbeddedPostgres, EmbeddedRedis
from webapp.supervisor.home import AlreadyRunningError, exclusive, free_port, load_secrets, port_is_free


def test_postgres_keeps_data_over_a_restart_and_a_kill(tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path / "pg", port=free_port(), password="p@ss", durable=True)
    server.start()
    with psycopg.connect(
        host="127.0.0.1", port=server.port, user="trainyard", password="p@ss", dbname="trainyard"
    ) as db:
        db.execute("create table kept (n int)")
        db.execute("insert into kept values (7)")
    assert server.process is not None
    server.process.kill()
    server.process.wait()
    server.start()
    with psycopg.connect(
        host="127.0.0.1", port=server.port, user="trainyard", password="p@ss", dbname="trainyard"
    ) as db:
        assert db.execute("select n from kept").fetchone() == (7,)
    pid = server.process.pid
    server.stop()
    assert not Path(f"/proc/{pid}").exists()
    assert port_is_free(server.port)


def test_postgres_refuses_a_wrong_password(postgres_server: str) -> None:
    wrong = make_conninfo(postgres_server, password="wrong")
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(wrong)


def test_a_busy_data_folder_is_named(tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path / "pg", port=free_port(), password="x", durable=False)
    server.start()
    try:
        with pytest.raises(PreflightError, match="still uses"):
            EmbeddedPostgres(tmp_path / "pg", port=free_port(), password="x", durable=False).start()
    finally:
        server.stop()


def test_redis_needs_its_password(tmp_path: Path) -> None:
    server = EmbeddedRedis(tmp_path / "redis", port=free_port(), password="pw", durable=False)
    server.start()
    try:
        with pytest.raises(redis.AuthenticationError):
            redis.Redis(port=server.port).ping()
        with redis.Redis(port=server.port, password="pw") as client:
            assert client.ping()
    finally:
        server.stop()


def test_secrets_are_made_once_and_private(tmp_path: Path) -> None:
    first = load_secrets(tmp_path)
    assert load_secrets(tmp_path) == first
    assert (tmp_path / "secrets.json").stat().st_mode & 0o077 == 0
    assert [p.name for p in tmp_path.iterdir()] == ["secrets.json"]


def test_a_second_supervisor_is_refused_with_the_first_ones_process(tmp_path: Path) -> None:
    with (
        exclusive(tmp_path),
        pytest.raises(AlreadyRunningError, match=f"process {os.getpid()}"),
        exclusive(tmp_path),
    ):
        pass
    with exclusive(tmp_path):
        assert (tmp_path / "supervisor.lock").exists()
