"""The launcher finds a Python that is new enough, and says so when there is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from engine.sandbox.agent.interpreters import NO_PYTHON, NO_PYTHON_STATUS, launcher

_SHOW = "import json; print(json.dumps([sys.argv, os.getpid(), sys.flags.isolated]))"


def run(argv: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, capture_output=True, text=True, env={"PATH": "/nowhere"}, timeout=240)


def aged(folder: Path, version: str) -> str:
    """A Python that says it is ``version``."""
    path = folder / "aged"
    path.write_text(
        "#!/bin/sh\n"
        "shift 4; code=$1; shift\n"
        f'exec {sys.executable} -I -S -B -c "import sys; sys.version_info = {version}; $code" "$@"\n'
    )
    path.chmod(0o755)
    return str(path)


def test_it_becomes_the_first_python_there_is() -> None:
    with subprocess.Popen(
        launcher(_SHOW, ["/no/such/python", sys.executable]), stdout=subprocess.PIPE, text=True
    ) as process:
        out, _ = process.communicate(timeout=240)
    assert out == f'[["-c"], {process.pid}, 1]\n'  # the same process: an init stays the init


def test_a_python_that_is_too_old_hands_over_to_the_next(tmp_path: Path) -> None:
    done = run(launcher("print(sys.version_info[:2])", [aged(tmp_path, "(3, 6)"), sys.executable]))
    assert done.stdout == f"{sys.version_info[:2]}\n", done.stderr
    alone = run(launcher("print(1)", [aged(tmp_path, "(2, 7)")]))
    assert (alone.returncode, alone.stdout) == (NO_PYTHON_STATUS, "")


def test_without_any_it_says_where_it_looked() -> None:
    done = run(launcher("print(1)", ["/none/python", "nope"]))
    assert (done.returncode, done.stdout) == (NO_PYTHON_STATUS, "")
    assert done.stderr == f"{NO_PYTHON} (looked for /none/python, nope)\n"
