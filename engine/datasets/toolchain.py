"""The test toolchain of images: pytest, the signing driver and a source's pure-Python dependencies.

``home/toolchain/<hash>/`` is installed once with pip and bound read-only into every sandbox whose
image names it, at ``MOUNT``.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from engine.datasets import pytest_driver, pytest_recorder
from engine.errors import PreflightError

PYTEST = "pytest==9.1.0"
MOUNT = "/opt/trainyard"
"""Where sandboxes see the toolchain."""
DRIVER = f"{MOUNT}/trainyard_driver.py"


def ensure_toolchain(home: Path, requirements: Sequence[str] = ()) -> Path:
    """Folder with pytest, the driver and ``requirements``; installed on first use.

    Raises:
        PreflightError: pip could not install it (no network, no pure-Python distribution).
    """
    wanted = [PYTEST, *sorted(requirements)]
    scripts = runner_scripts()
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    digest = hashlib.sha256(repr((wanted, version)).encode() + b"".join(scripts.values())).hexdigest()[:16]
    target = home / "toolchain" / digest
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{digest}-", dir=target.parent))
    try:
        # "any" admits pure-Python wheels only: the folder serves every interpreter a sandbox may have.
        pure = ["--only-binary", ":all:", "--platform", "any", "--target", str(staging)]
        run_pip(["install", *pure, *wanted])
        for name, script in scripts.items():
            (staging / name).write_bytes(script)
        (staging / "pytest.ini").write_text("[pytest]\n")
        staging.chmod(0o755)
        staging.rename(target)
    except OSError:
        if not target.exists():
            raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return target


def runner_scripts() -> dict[str, bytes]:
    """Our own files of a toolchain."""
    return {
        "trainyard_driver.py": Path(pytest_driver.__file__).read_bytes(),
        "trainyard_recorder.py": Path(pytest_recorder.__file__).read_bytes(),
    }


def run_pip(arguments: Sequence[str]) -> None:
    """Run pip quietly. Raises PreflightError with the last line of what it said."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", *arguments]
    environment = {**os.environ, "PIP_NO_INPUT": "1"}
    result = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=600, env=environment
    )
    if result.returncode != 0:
        said = [line for line in result.stderr.strip().split("\n") if line.strip()] or ["no output"]
        raise PreflightError(f"pip {arguments[0]} failed: {said[-1].strip()} (is a package index reachable?)")
