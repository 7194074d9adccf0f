"""Last line of an engine's log in plain words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from webapp.runs.selectors.folders import run_folder
from workers import rundir


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("Killed", "Killed"),
        ("{not JSON", "{not JSON"),
        ('["event"]', '["event"]'),
        ('{"event": "engines_ready", "level": "info", "timestamp": "t"}', "engines ready"),
        (
            '{"restarts": 2, "event": "engine_lost", "level": "error", "timestamp": "t"}',
            "engine lost: restarts 2",
        ),
        (
            '{"event": "run_failed", "exception": "Traceback:\\n  x\\nMemoryError: no room"}',
            "run failed: MemoryError: no room",
        ),
    ],
)
def test_structured_log_lines_become_plain_text(settings: Any, tmp_path: Path, line: str, words: str) -> None:
    settings.TRAINYARD_HOME = tmp_path
    folder = run_folder(7)
    folder.mkdir(parents=True)
    (folder / "engine.log").write_text(f"first\n{line}\n\n")
    assert rundir.last_words(7) == words
