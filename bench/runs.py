"""Runs for a bench: each once, in a folder named by its settings, resumed where it was interrupted."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from engine.config.recipes import resolve
from engine.run import CONFIG_NAME, LAUNCH_NAME, LOG_NAME


def configured(recipe: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the resolved configuration of a recipe as JSON."""
    return resolve(recipe, overrides).model_dump(mode="json")


def run_name(prefix: str, config: Mapping[str, Any]) -> str:
    """Return the name of a run folder, which depends on the configuration."""
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:8]
    return f"{prefix}-{digest}"


def finish_run(name: str, config: Mapping[str, Any], home: Path) -> Path:
    """Run a configuration to its end unless it is finished; return the run's folder.

    Raises:
        RuntimeError: the run failed; the message names its log.
    """
    run_dir = home / "runs" / name
    if is_finished(run_dir):
        return run_dir
    prepare(name, config, home)
    with (run_dir / LOG_NAME).open("a") as log:
        command = [sys.executable, "-m", "engine.run", str(run_dir)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        code = subprocess.run(command, stderr=log, env=environment, check=False).returncode
    if code != 0 or not is_finished(run_dir):
        raise RuntimeError(f"{name} ended with exit code {code}: see {run_dir / LOG_NAME}")
    return run_dir


def is_finished(run_dir: Path) -> bool:
    """Return whether the run's last event reports success."""
    spool = run_dir / "events.jsonl"
    if not spool.exists():
        return False
    with spool.open("rb") as file:
        file.seek(max(0, spool.stat().st_size - 65_536))
        lines = file.read().splitlines()
    last = json.loads(lines[-1]) if lines and lines[-1].endswith(b"}") else {}
    return bool(last.get("type") == "run_finished" and last.get("state") == "succeeded")


def prepare(name: str, config: Mapping[str, Any], home: Path) -> None:
    """Prepare the run's folder for its next attempt."""
    run_dir = home / "runs" / name
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / CONFIG_NAME).write_text(json.dumps(config, indent=2) + "\n")
    launch = run_dir / LAUNCH_NAME
    epoch = json.loads(launch.read_text())["epoch"] + 1 if launch.exists() else 1
    identity = {"run_id": name, "epoch": epoch, "ingest_url": None, "token": "", "home": str(home)}
    draft = launch.with_suffix(".draft")
    draft.write_text(json.dumps(identity) + "\n")
    draft.rename(launch)


def events_of(run_dir: Path, *types: str) -> Iterator[dict[str, Any]]:
    """Yield the run's events of some types; others are not parsed."""
    wanted = tuple(f'"{name}"' for name in types)
    with (run_dir / "events.jsonl").open(encoding="utf-8") as file:
        for line in file:
            if any(name in line[:200] for name in wanted) and line.endswith("\n"):
                yield json.loads(line)
