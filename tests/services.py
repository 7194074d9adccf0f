"""A temporary data folder and lazily started PostgreSQL and Redis for the test session.

Loaded by ``-p tests.services`` so that the addresses are in the environment before Django's settings
are read; the first test that requests a server starts it. DATABASE_URL and REDIS_URL in the environment
select existing servers instead.

Each worker of pytest-xdist has its own folder and servers (both start in less than a second); on
servers from the environment each worker has its own database.
"""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pytest
from filelock import FileLock

T = TypeVar("T")

HOME = Path(tempfile.mkdtemp(prefix="trainyard-test-"))
(HOME / "static").mkdir()  # whitenoise warns when it is missing, and warnings are errors
os.environ["TRAINYARD_HOME"] = str(HOME)
os.environ.setdefault("TRAINYARD_RUNS_AT_ONCE", "1000")
SHARED = Path(os.environ.setdefault("TRAINYARD_TEST_SHARED", str(HOME)))
"""Data folder of the process that started the workers; all workers inherit it."""
_OWN_POSTGRES = "DATABASE_URL" not in os.environ
_OWN_REDIS = "REDIS_URL" not in os.environ
_WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")  # "gw0", "gw1", …
if _WORKER:
    os.environ["OMP_NUM_THREADS"] = "1"  # the workers share the cores

from tests.ports import reserved_port  # noqa: E402
from webapp.supervisor.embedded import EmbeddedPostgres, EmbeddedRedis  # noqa: E402

_POSTGRES = EmbeddedPostgres(HOME / "postgres", port=reserved_port(), password="test", durable=False)
_REDIS = EmbeddedRedis(HOME / "redis", port=reserved_port(), password="test", durable=False)
if _OWN_POSTGRES:
    os.environ["DATABASE_URL"] = _POSTGRES.url
if _OWN_REDIS:
    os.environ["REDIS_URL"] = _REDIS.url
elif _WORKER:
    os.environ["REDIS_URL"] = urlsplit(os.environ["REDIS_URL"])._replace(path=f"/{_WORKER[2:]}").geturl()


def pytest_xdist_setupnodes() -> None:
    """Keep the addresses of this process's servers out of the environment of its workers."""
    for name, own in (("DATABASE_URL", _OWN_POSTGRES), ("REDIS_URL", _OWN_REDIS)):
        if own:
            del os.environ[name]


def elsewhere(function: Callable[..., T], *arguments: Any) -> T:
    """Call a function in another thread: in browser tests the current one runs an event loop."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *arguments).result()


@functools.cache
def made_once(name: str, make: Callable[[Path], None]) -> Path:
    """Return a read-only folder, filled by ``make`` in the first worker that requests it."""
    folder = SHARED / name
    with FileLock(SHARED / f"{name}.lock"):
        if not folder.exists():
            unfinished = Path(tempfile.mkdtemp(dir=SHARED, prefix=f"{name}-"))
            elsewhere(make, unfinished)
            unfinished.rename(folder)
    return folder


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """Address of a running PostgreSQL."""
    if _OWN_POSTGRES:
        _POSTGRES.start()
    yield os.environ["DATABASE_URL"]
    if _OWN_POSTGRES:
        _POSTGRES.stop()


@pytest.fixture(scope="session")
def redis_server() -> Iterator[str]:
    """Address of a running Redis."""
    if _OWN_REDIS:
        _REDIS.start()
    yield os.environ["REDIS_URL"]
    if _OWN_REDIS:
        _REDIS.stop()


def pytest_unconfigure() -> None:
    """Remove the data folder."""
    shutil.rmtree(HOME, ignore_errors=True)
