"""What must win over a plugin or over the settings (``tests.services`` starts the servers)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog
from django.conf import settings


def pytest_configure() -> None:
    """Static files by their plain names (no collectstatic before a test), passwords hashed cheaply."""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    settings.STORAGES["staticfiles"]["BACKEND"] = "django.contrib.staticfiles.storage.StaticFilesStorage"


@pytest.fixture(scope="session")
def django_db_modify_db_settings(postgres_server: str) -> None:
    """Start PostgreSQL before pytest-django makes the test database."""


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    """A run that a test makes in this process sends the log to its own file, which is closed by then."""
    yield
    structlog.reset_defaults()
