"""Imports that are killed and resumed, or stopped within a row."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from engine.datasets.store import dataset_path, load_dataset
from tests.unit.datasets.importers.builders import numbered, write_lines

REPOSITORY = Path(__file__).resolve().parents[4]


def test_killed_import_resumes_without_losing_or_duplicating_rows(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "rows.jsonl", [numbered(n) for n in range(1_200)])
    options = ["--format", "swe-rebench", "--name", "d", "--home", str(tmp_path)]
    command = [sys.executable, "-m", "engine.orchestrator.importing", *options, str(source)]
    state = tmp_path / "datasets" / ".import-d" / "state.json"
    process = subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 240
    while not state.exists() and time.monotonic() < deadline:
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not dataset_path(tmp_path, "d").exists()
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    counts = json.loads(done.stdout.splitlines()[-1])
    assert (counts["read"], counts["imported"], counts["resumed"]) == (1_200, 1_200, True)
    assert [row.task.instance_id for row in load_dataset(tmp_path, "d").rows] == [
        f"acme__pkg-{n}" for n in range(1_200)
    ]


def test_sigterm_ends_an_import_that_never_completes_a_row(tmp_path: Path) -> None:
    with (tmp_path / "rows.jsonl").open("wb") as endless:
        endless.truncate(1 << 40)  # a sparse file: one line of zeros
    options = ["--format", "swe-rebench", "--name", "d", "--home", str(tmp_path)]
    command = [sys.executable, "-m", "engine.orchestrator.importing", *options, str(tmp_path / "rows.jsonl")]
    process = subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 240
    while not (tmp_path / "datasets" / ".import-d").exists() and time.monotonic() < deadline:
        time.sleep(0.002)
    process.terminate()
    assert process.wait(timeout=240) == -signal.SIGALRM
