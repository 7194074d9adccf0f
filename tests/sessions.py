"""Detection of sessions left open on the test database, which prevent its removal."""

from __future__ import annotations

import time
from typing import Any

import psutil
import psycopg
from django.db import connections
from django.db.backends.postgresql.base import DatabaseWrapper

_END_WITHIN_S = 60.0
"""Time limit for sessions of ended processes to close on a busy machine; PostgreSQL waits for 5 s."""
_SESSIONS = """
SELECT pid, backend_type, client_port, backend_start, state, query
FROM pg_stat_activity WHERE datname = %s AND backend_type <> 'autovacuum worker' ORDER BY pid
"""


def assert_all_are_closed() -> None:
    """Close this thread's sessions and wait until all others have ended. Raises AssertionError."""
    wrapper = connections["default"]
    assert isinstance(wrapper, DatabaseWrapper)
    lent = _lent(wrapper)
    wrapper.close()
    wrapper.close_pool()
    database = wrapper.settings_dict
    deadline = time.monotonic() + _END_WITHIN_S
    with psycopg.connect(
        host=database["HOST"],
        port=database["PORT"],
        user=database["USER"],
        password=database["PASSWORD"],
        dbname="postgres",
        autocommit=True,
    ) as server:
        while rows := server.execute(_SESSIONS, [database["NAME"]]).fetchall():
            report = [f"sessions that no test closed, {lent} of this process's pool:", *map(_described, rows)]
            assert time.monotonic() < deadline, "\n".join(report)
            time.sleep(0.1)


def _lent(wrapper: DatabaseWrapper) -> int:
    """Return how many connections of the pool are in use, besides this thread's."""
    pool = wrapper.pool
    assert pool is not None
    stats: dict[str, int] = pool.get_stats()
    return stats.get("pool_size", 0) - stats.get("pool_available", 0) - int(wrapper.connection is not None)


def _described(row: tuple[Any, ...]) -> str:
    pid, kind, port, start, state, query = row
    return f"  {pid} {kind} of {_owner(port)}, since {start}, {state}: {query}"


def _owner(port: int) -> str:
    for process in psutil.process_iter():
        try:
            if any(link.laddr.port == port for link in process.net_connections("tcp")):
                return f"process {process.pid} ({' '.join(process.cmdline())})"
        except psutil.Error:
            continue
    return f"an ended process (port {port})"
