"""Embedded servers require their passwords, and a data folder has one supervisor at a time."""

from __future__ import annotations

import os
from pathlib import Path

import psycopg
import pytest
import redis
from psycopg.conninfo import make_conninfo

from engine.errors import PreflightError
from tests.ports import reserved_port
from webapp.supervisor.embedded import EmbeddedPostgres, EmbeddedRedis
from webapp.supervisor.home import AlreadyRunningError, exclusive, load_secrets


def test_postgres_refuses_a_wrong_password(postgres_server: str) -> None:
    wrong = make_conninfo(postgres_server, password="wrong")
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(wrong)


def test_postgres_refuses_a_data_folder_in_use(tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path / "pg", port=reserved_port(), password="x", durable=False)
    server.start()
    try:
        with pytest.raises(PreflightError, match="still uses"):
            EmbeddedPostgres(tmp_path / "pg", port=reserved_port(), password="x", durable=False).start()
    finally:
        server.stop()


def test_redis_needs_its_password(tmp_path: Path) -> None:
    server = EmbeddedRedis(tmp_path / "redis", port=reserved_port(), password="pw", durable=False)
    server.start()
    try:
        with pytest.raises(redis.AuthenticationError):
            redis.Redis(port=server.port).ping()
        with redis.Redis(port=server.port, password="pw") as client:
            assert client.ping()
    finally:
        server.stop()


def test_secrets_are_created_once_and_are_private(tmp_path: Path) -> None:
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
