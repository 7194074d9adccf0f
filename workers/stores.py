"""Requests to the object stores of runs, made by engine processes: workers load no store client."""

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
    """Copy the events of a run from a store to a file; return the error message, empty on success."""
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
    return done.stderr.strip().rpartition("\n")[2] or "no output" if done.returncode else ""
