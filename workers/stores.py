"""Requests to the object stores of runs, by processes of the engine: workers load no store's client."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from engine.config.run import AnyRun
from engine.errors import ConfigError, Problem
from workers.launchers.base import PROJECT

_TIMEOUT_S = 60.0


def check(run: AnyRun) -> None:
    """Write, read and delete an object in a run's store, if it has one. Raises ConfigError."""
    if run.storage.url and (problem := _storage("check", run.storage.url)):
        raise ConfigError(Problem(problem, "storage.url"))


def fetch_spool(url: str, run_id: int, path: Path) -> str:
    """Write the events of a run in a store to a file; return what went wrong, if anything."""
    return _storage("spool", f"{url.rstrip('/')}/{run_id}", str(path))


def _storage(*arguments: str) -> str:
    try:
        done = subprocess.run(
            [sys.executable, "-m", "engine.storage", *arguments],
            cwd=PROJECT,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stderr.strip().rpartition("\n")[2] or "it said nothing" if done.returncode else ""
