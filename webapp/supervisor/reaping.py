"""Execution of the engine's reaper in a separate process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_TIMEOUT_S = 60.0


class ReapingFailedError(Exception):
    """The reaper failed; the message is its output."""


def run_reaper(
    *, home: Path, project: Path, settings: Sequence[dict[str, Any]], timeout_s: float = _TIMEOUT_S
) -> list[dict[str, Any]]:
    """Run the reaper and return the result for each backend: ``{"backend", "removed", "error"}``.

    Args:
        home: the data folder.
        project: folder of the engine.
        settings: sandbox settings for access to the backends.
        timeout_s: time after which the reaper is killed.

    Raises:
        ReapingFailedError: the reaper could not be started or failed.
    """
    command = [sys.executable, "-m", "engine.sandbox", "--home", str(home), "reap"]
    try:
        done = subprocess.run(
            [*command, "--backend", "all", "--config", "-", "--json"],
            cwd=project,
            input=json.dumps(list(settings)),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        results: list[dict[str, Any]] = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ReapingFailedError(str(error)) from error
    except ValueError:
        raise ReapingFailedError((done.stderr or done.stdout).strip()[-500:] or "no output") from None
    return results
