"""Launcher of the agent: selection of a recent Python, and its error when there is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from engine.sandbox.agent.interpreters import NO_PYTHON, NO_PYTHON_STATUS, launcher

_SHOW = "import json; print(json.dumps([sys.argv, os.getpid(), sys.flags.isolated]))"


def run(argv: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, capture_output=True, text=True, env={"PATH": "/nowhere"}, timeout=240)


def fake_python(folder: Path, version: str) -> str:
    """Create an interpreter that reports ``version`` as its own."""
    path = folder / "aged"
    path.write_text(
        "#!/bin/sh\n"
        "shift 4; code=$1; shift\n"
        f'exec {sys.executable} -I -S -B -c "import sys; sys.version_info = {version}; $code" "$@"\n'
    )
    path.chmod(0o755)
    return str(path)


def test_launcher_becomes_the_first_existing_python() -> None:
    with subprocess.Popen(
        launcher(_SHOW, ["/no/such/python", sys.executable]), stdout=subprocess.PIPE, text=True
    ) as process:
        out, _ = process.communicate(timeout=240)
    assert out == f'[["-c"], {process.pid}, 1]\n'  # the same process, so that PID 1 remains PID 1


def test_launcher_skips_pythons_that_are_too_old(tmp_path: Path) -> None:
    result = run(launcher("print(sys.version_info[:2])", [fake_python(tmp_path, "(3, 6)"), sys.executable]))
    assert result.stdout == f"{sys.version_info[:2]}\n", result.stderr
    rejected = run(launcher("print(1)", [fake_python(tmp_path, "(2, 7)")]))
    assert (rejected.returncode, rejected.stdout) == (NO_PYTHON_STATUS, "")


def test_launcher_without_python_reports_the_searched_paths() -> None:
    result = run(launcher("print(1)", ["/none/python", "nope"]))
    assert (result.returncode, result.stdout) == (NO_PYTHON_STATUS, "")
    assert result.stderr == f"{NO_PYTHON} (looked for /none/python, nope)\n"
