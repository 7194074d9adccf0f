"""Signals interrupt the supervisor at any moment except during a fork."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whether or not the tests themselves run under nohup
from webapp.supervisor import interrupts
interrupts.raise_on_signals()
def strike():
    os.kill(os.getpid(), signal.{name})
    for _ in range(1000):
        pass
    print("after the strike", flush=True)
os.register_at_fork(before=strike)
try:
    {body}
    print("missed", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def output(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_signal_during_a_fork_is_deferred_to_the_next_check(name: str) -> None:
    body = "\n    ".join(
        (
            "with interrupts.starting_a_process():",
            "    subprocess.run(['true'], preexec_fn=lambda: None)",
            "interrupts.check()",
        )
    )
    assert output(CODE.format(name=name, body=body)) == ["after the strike", "interrupted"]


def test_signal_outside_of_a_fork_interrupts_at_once() -> None:
    assert output(CODE.format(name="SIGTERM", body="strike()")) == ["interrupted"]


def test_signals_during_shutdown_are_ignored() -> None:
    body = "\n    ".join(("with interrupts.ignored():", "    strike()"))
    assert output(CODE.format(name="SIGTERM", body=body)) == ["after the strike", "missed"]


def test_sighup_ignored_by_nohup_stays_ignored() -> None:
    code = (
        "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "from webapp.supervisor import interrupts; interrupts.raise_on_signals()\n"
        "print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)"
    )
    assert output(code) == ["True"]
