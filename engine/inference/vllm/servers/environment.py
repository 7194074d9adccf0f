"""Interpreter with vLLM, and the environment variables of its servers."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from engine.errors import PreflightError

_ROOT = Path(__file__).resolve().parents[4]
_OWN = _ROOT / ".venv-vllm" / "bin" / "python"
"""Interpreter that ``make vllm`` makes."""
INHERITED = (
    "PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "LD_PRELOAD",
    "CUDA_*", "NVIDIA_*", "NCCL_*", "GLOO_*",
)  # fmt: skip
"""Patterns of the variables that a server inherits; all others, keys and tokens among them, stay outside."""


def find_interpreter(configured: str = "") -> Path:
    """Return the Python interpreter whose environment has vLLM.

    Args:
        configured: ``policy.vllm.python``; empty: the environment of ``make vllm``, else this interpreter.

    Raises:
        PreflightError: none has vLLM.
    """
    if configured:
        found = shutil.which(configured)
        if found is None:
            raise PreflightError(
                f"policy.vllm.python names '{configured}', which is no program; name an interpreter with vLLM"
            )
        candidate = Path(found)
    else:
        candidate = _OWN if _OWN.exists() else Path(sys.executable)
    if not _has_vllm(candidate):
        raise PreflightError(
            f"{candidate} has no vLLM: run `make vllm` (without GPU), or set policy.vllm.python to an "
            "interpreter whose environment has it"
        )
    return candidate


def _has_vllm(python: Path) -> bool:
    look = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
    try:
        done = subprocess.run([python, "-c", look], timeout=60, capture_output=True, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
