"""Removes sandboxes whose run or deadline is over, by the engine's own command in its own process."""

from __future__ import annotations

import logging
import subprocess
import sys

from django.conf import settings

from workers.launchers.local import PROJECT

log = logging.getLogger(__name__)
_TIMEOUT_S = 60.0


def reap() -> bool:
    """Run ``python -m engine.sandbox reap``; False (and a log line) when it failed."""
    command = [sys.executable, "-m", "engine.sandbox", "reap", "--home", str(settings.TRAINYARD_HOME)]
    try:
        done = subprocess.run(
            command, cwd=PROJECT, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        log.warning("reaping failed: %s", error)
        return False
    if done.returncode:
        log.warning("reaping failed: %s", (done.stderr or done.stdout).strip()[-500:])
    return done.returncode == 0
