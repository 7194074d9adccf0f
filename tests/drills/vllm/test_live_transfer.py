"""Weight transfers without files, from the trainer through vLLM's classes to servers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

_ROOT = Path(__file__).parents[3]


def test_weights_are_transferred_through_vllms_own_classes(vllm_python: Path) -> None:
    """The two calls that need a GPU are replaced."""
    done = subprocess.run(
        [vllm_python, "-m", "tests.drills.vllm.live_transfer_script"],
        cwd=_ROOT,
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "transferred" in done.stdout
