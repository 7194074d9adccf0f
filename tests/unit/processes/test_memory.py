"""Memory limits of engines: cgroups, allocation errors and OOM scores."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from engine.processes import cgroups, memory, process_start

GROW = """
import sys
from engine.processes import cgroups, memory
{patch}
memory.limit_memory()
print(open("/proc/self/oom_score_adj").read().strip(), flush=True)
sys.stdin.read(1)
try:
    taken = bytearray(600 << 20)
except MemoryError:
    sys.exit(3)
"""


def exceed_limit(patch: str = "") -> tuple[int, int, bool]:
    """Run an engine beyond its limit; return exit code, OOM score and whether it was killed for memory."""
    command = [sys.executable, "-c", GROW.format(patch=patch)]
    environment = {**os.environ, memory.LIMIT_VARIABLE: "300"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        oom_score = int(process.stdout.readline())
        started = process_start(process.pid)
        process.communicate("x")
    assert started is not None
    killed = memory.was_killed_for_memory(process.pid, started)
    if (groups := cgroups.detect()) is not None:
        cgroups.remove(groups.plan(f"engine-{process.pid}-{started}"))
    return process.returncode, oom_score, killed


@pytest.mark.parametrize("patch", ["", "cgroups.detect = lambda: None"], ids=["groups", "none"])
def test_an_engine_beyond_its_limit_is_killed_or_gets_an_error(patch: str) -> None:
    has_groups = not patch and cgroups.detect() is not None
    code, oom_score, killed = exceed_limit(patch)
    assert (code, killed) == ((-signal.SIGKILL, True) if has_groups else (3, False))
    own = int(Path("/proc/self/oom_score_adj").read_text())
    assert oom_score == max(500, own), "a rank may be raised by anybody"


def test_default_limit_leaves_a_reserve_in_the_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(memory.LIMIT_VARIABLE, raising=False)
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = {}
    for container in (1 << 30, physical // 2, None):
        monkeypatch.setattr(cgroups, "memory_limit", lambda container=container: container)
        limits[container] = memory._limit_bytes()
    assert limits[1 << 30] == 1 << 29
    assert limits[physical // 2] < physical // 2 <= limits[None] < physical


def test_smallest_cgroup_limit_above_a_process_counts(tmp_path: Path) -> None:
    own = tmp_path / "cg/a/b"
    own.mkdir(parents=True)
    (own / "memory.max").write_text("max\n")
    (own.parent / "memory.max").write_text("1000\n")
    (tmp_path / "mounts").write_text(f"cgroup2 {tmp_path}/cg cgroup2 rw 0 0\n")
    (tmp_path / "own").write_text("0::/a/b\n")
    assert cgroups.memory_limit(tmp_path / "mounts", tmp_path / "own") == 1000
    (own.parent / "memory.max").write_text("max\n")
    assert cgroups.memory_limit(tmp_path / "mounts", tmp_path / "own") is None
