"""Removal of sandboxes whose run has ended or whose deadline has passed, on every backend in use."""

from __future__ import annotations

import logging

from django.conf import settings

from webapp.sandboxes import selectors as reads
from webapp.sandboxes import services as sandboxes
from webapp.supervisor.engine_process import EngineFailedError
from webapp.supervisor.reaping import run_reaper
from workers.launchers.base import PROJECT

log = logging.getLogger(__name__)


def reap() -> bool:
    """Run the engine's reaper and store its results; log and return False if it failed."""
    try:
        results = run_reaper(
            home=settings.TRAINYARD_HOME,
            project=PROJECT,
            settings=sandboxes.backend_settings(reads.configs_in_use()),
        )
    except EngineFailedError as error:
        log.warning("reaping failed: %s", error)
        return False
    sandboxes.record_reaping(found=[sandboxes.Reaped(**result) for result in results])
    return True
