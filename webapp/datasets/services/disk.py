"""Removal of files that curations kept and nothing uses."""

from __future__ import annotations

from django.conf import settings
from django.contrib.auth.models import User

from webapp.core.services import audit
from webapp.datasets.selectors.disk import TIMEOUT_S, KeptFile, command
from webapp.supervisor.engine_process import engine_json


def remove_unused(*, actor: User | None = None) -> list[KeptFile]:
    """Remove the unused files and return those that are gone.

    Raises:
        EngineFailedError: a run uses the files, or a dataset cannot be read; after a timeout some are gone.
    """
    files = engine_json([*command(), "--remove"], project=settings.BASE_DIR, timeout_s=TIMEOUT_S)
    removed = [KeptFile(**file) for file in files]
    audit.record(actor=actor, action="datasets.remove_files", target=f"{len(removed)} unused files")
    return removed
