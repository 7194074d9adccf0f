"""What must win over a plugin or over the settings (``tests.services`` starts the servers)."""

from __future__ import annotations

import pytest
from django.conf import settings


def pytest_configure() -> None:
    """Pages in tests name static files as they lie in ``static/``: no collectstatic before a test."""
    settings.STORAGES["staticfiles"]["BACKEND"] = "django.contrib.staticfiles.storage.StaticFilesStorage"


@pytest.fixture(scope="session")
def django_db_modify_db_settings(postgres_server: str) -> None:
    """Start PostgreSQL before pytest-django makes the test database."""
