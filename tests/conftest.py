"""Hooks and fixtures that override plugins and settings (``tests.services`` starts the servers)."""

from __future__ import annotations

import gc
import math
import os
from collections.abc import Generator, Iterator

import hypothesis
import psutil
import pytest
import structlog
from django.conf import settings
from pytest_django import DjangoDbBlocker

from tests.sessions import assert_all_are_closed

_MAX_WORKERS = 8
_WORKERS_PER_CORE = 2
"""A worker spends half of its time waiting for processes and responses."""
_WORKER_MEMORY = 3 << 30
"""Bytes of memory per worker of ``-n auto``, including its servers, sandboxes and engines."""


def pytest_configure() -> None:
    """Serve static files under their plain names (no collectstatic) and hash passwords cheaply."""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    settings.STORAGES["staticfiles"]["BACKEND"] = "django.contrib.staticfiles.storage.StaticFilesStorage"


# A property test must not fail because the machine is busy.
hypothesis.settings.register_profile(
    "trainyard", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("trainyard")


def pytest_xdist_auto_num_workers() -> int | None:
    """Return the number of workers for ``-n auto``: two per core, limited by memory."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None  # read by the plugin itself
    wanted = _WORKERS_PER_CORE * len(os.sched_getaffinity(0))
    fitting: int = psutil.virtual_memory().total // _WORKER_MEMORY
    return max(1, min(wanted, fitting, _MAX_WORKERS))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Disable garbage collection while collecting; it would traverse all imported modules repeatedly."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep tests that share a module's or package's fixture on one worker, which sets it up once.

    Raises UsageError for a test id that differs between workers.
    """
    unstable = [item.nodeid for item in items if " at 0x" in item.nodeid]
    if unstable:
        raise pytest.UsageError(
            f"named after an address, which no two workers share: {unstable[0]}; give ids"
        )
    for item in items:
        if isinstance(item, pytest.Function) and not item.get_closest_marker("xdist_group"):
            shared = _owners_of_shared_fixtures(item)
            if shared:
                item.add_marker(pytest.mark.xdist_group(min(shared, key=len)))


def _owners_of_shared_fixtures(item: pytest.Function) -> set[str]:
    definitions = item._fixtureinfo.name2fixturedefs.values()
    used = [versions[-1] for versions in definitions if versions]
    return {f.baseid for f in used if f.baseid and f.scope in ("class", "module", "package")}


@pytest.fixture(scope="session")
def django_db_modify_db_settings(
    postgres_server: str, django_db_modify_db_settings_parallel_suffix: None
) -> None:
    """Start PostgreSQL before pytest-django creates the test database of each worker."""


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """Fail with a list of the open sessions that prevent removal of the test database.

    On a busy machine tasks must not end early, nor may a session's use be recorded more than once.
    """
    from webapp.accounts import middleware
    from webapp.rollouts.services import passages, scans

    scans.TASK_S = passages.TASK_S = math.inf
    middleware.EVERY_S = 1_000_000_000
    yield
    with django_db_blocker.unblock():
        assert_all_are_closed()


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    """Reset logging: a run in the test's process redirects it to a file that is closed afterwards."""
    yield
    structlog.reset_defaults()
