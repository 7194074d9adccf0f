"""Copies of run folders as a killed process would have left them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any


def cut_off(run_dir: Path, copy: Path, *, iterations: int = 0, rollouts: int = 0) -> list[dict[str, Any]]:
    """Copy a run as it was after ``iterations``, with ``rollouts`` of the next iteration.

    Returns:
        the remaining events.
    """
    shutil.copytree(run_dir, copy)
    lines = (run_dir / "events.jsonl").read_bytes().splitlines(keepends=True)
    events = [json.loads(line) for line in lines]
    types = [event["type"] for event in events]
    end = 0
    for kind in ["iteration_finished"] * iterations + ["trajectory_finished"] * rollouts:
        end = types.index(kind, end) + 1
    (copy / "events.jsonl").write_bytes(b"".join(lines[:end]))
    for folder in (*copy.glob("checkpoints/[0-9]*"), *copy.glob("rounds/[0-9]*")):
        if int(folder.name) > iterations:
            shutil.rmtree(folder)
    return events[:end]
