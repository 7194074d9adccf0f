"""Use of processor and memory by a process tree, and of GPUs as a program reports them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.processes.usage import gpu_usage, machine_usage, tree_usage

CHILD = """
import ctypes, subprocess, sys, time
# The name of a process may look like the fields that follow it.
ctypes.CDLL(None).prctl(15, b") R 1 (", 0, 0, 0)
holder = "x = bytearray(64 << 20); print(flush=True); import time; time.sleep(60)"
grandchild = subprocess.Popen([sys.executable, "-c", holder], stdout=subprocess.PIPE)
grandchild.stdout.readline()
ended = subprocess.run([sys.executable, "-c", "sum(range(10_000_000))"])
print(flush=True)
sys.stdin.read()
grandchild.kill()
grandchild.wait()
"""


def test_a_tree_contains_descendants_and_the_time_of_ended_ones() -> None:
    before = tree_usage(os.getpid())
    with subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        during = tree_usage(os.getpid())
        child.communicate()
    assert during.children == before.children + 2
    assert during.children_memory - before.children_memory > 64 << 20
    assert during.children_cpu_s > before.children_cpu_s
    assert during.memory > 10 << 20
    after = tree_usage(os.getpid())
    assert after.children == before.children
    assert after.children_cpu_s >= during.children_cpu_s


def test_an_ended_process_uses_nothing() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert tree_usage(child.pid).memory == 0


def test_the_machine_has_memory_and_busy_time() -> None:
    usage = machine_usage()
    assert 0 < usage.memory < usage.memory_total
    assert usage.cpu_s > 0


def test_gpus_are_read_from_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu_usage() == []
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho '0, 87, 70123, 143771'\necho '1, [N/A], 12, 143771'\n")
    program.chmod(0o755)
    (gpu,) = gpu_usage()
    assert (gpu.index, gpu.use, gpu.memory, gpu.memory_total) == (0, 0.87, 70123 << 20, 143771 << 20)
    program.write_text("#!/bin/sh\nexit 9\n")
    with pytest.raises(subprocess.SubprocessError):
        gpu_usage()
