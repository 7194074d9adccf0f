"""Execution of the engine's reaper in a separate process."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from webapp.supervisor.engine_process import engine_json


def run_reaper(
    *, home: Path, project: Path, settings: Sequence[dict[str, Any]], timeout_s: float = 60.0
) -> list[dict[str, Any]]:
    """Run the reaper and return the result for each backend: ``{"backend", "removed", "error"}``.

    Args:
        home: the data folder.
        project: folder of the engine.
        settings: sandbox settings for access to the backends.
        timeout_s: time after which the reaper is killed.

    Raises:
        EngineFailedError: the reaper could not be started or failed.
    """
    command = ["engine.sandbox", "--home", str(home), "reap", "--backend", "all", "--config", "-", "--json"]
    results: list[dict[str, Any]] = engine_json(
        command, project=project, stdin=json.dumps(list(settings)), timeout_s=timeout_s
    )
    return results
