"""Transfers without files: what the trainer asks of vLLM's own classes, and what these ask of servers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

_ROOT = Path(__file__).parents[3]


def test_vllms_own_classes_transfer_the_weights(vllm_python: Path) -> None:
    """Without a GPU: the two calls that need one are replaced."""
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
