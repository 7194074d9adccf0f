"""Threads of OpenMP: how long they spin while they wait."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from engine.processes.openmp import limit_spinning, spinning

NAMES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")


@pytest.mark.parametrize(
    "given",
    [{}, {"OMP_WAIT_POLICY": "ACTIVE"}, {"GOMP_SPINCOUNT": "5"}],
    ids=["nothing", "a policy", "spins"],
)
def test_what_the_environment_says_stays(monkeypatch: pytest.MonkeyPatch, given: dict[str, str]) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    limit_spinning()
    found = {name: os.environ[name] for name in NAMES if name in os.environ}
    assert found == (given or {"GOMP_SPINCOUNT": "300"})
    assert spinning() == found  # for ranks on other nodes
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)


def test_a_runs_process_decides_before_torch_is_there() -> None:
    script = "import engine.run, sys; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"
