"""What must win over a plugin or over the settings (``tests.services`` starts the servers)."""

from __future__ import annotations

import gc
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
"""Half of the time a worker waits for processes and answers."""
_WORKER_MEMORY = 3 << 30
"""Bytes of memory for a worker of ``-n auto`` with its servers, sandboxes and engines."""


def pytest_configure() -> None:
    """Static files by their plain names (no collectstatic before a test), passwords hashed cheaply."""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    settings.STORAGES["staticfiles"]["BACKEND"] = "django.contrib.staticfiles.storage.StaticFilesStorage"


# A busy machine is no finding of a property test.
hypothesis.settings.register_profile(
    "trainyard", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("trainyard")


def pytest_xdist_auto_num_workers() -> int | None:
    """Return the workers of ``-n auto``: two for each core, as far as there is memory for them."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None  # read by the plugin itself
    wanted = _WORKERS_PER_CORE * len(os.sched_getaffinity(0))
    fitting: int = psutil.virtual_memory().total // _WORKER_MEMORY
    return max(1, min(wanted, fitting, _MAX_WORKERS))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without garbage collections, which would walk all imported modules again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests that share a module's or package's fixture on one worker, where it is made once.

    Refuses names that differ between workers.
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
    return {one.baseid for one in used if one.baseid and one.scope in ("class", "module", "package")}


@pytest.fixture(scope="session")
def django_db_modify_db_settings(
    postgres_server: str, django_db_modify_db_settings_parallel_suffix: None
) -> None:
    """Start PostgreSQL before pytest-django makes the test database, one for each worker."""


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """Name the sessions that keep the test database from being removed."""
    yield
    with django_db_blocker.unblock():
        assert_all_are_closed()


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    """A run that a test makes in this process sends the log to its own file, which is closed by then."""
    yield
    structlog.reset_defaults()
