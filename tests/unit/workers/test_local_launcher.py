"""Local processes are identified by pid and start time."""

from __future__ import annotations

import os
import socket

import pytest

from engine.processes import process_start
from workers.launchers.base import ProcessState
from workers.launchers.local import LocalLauncher


def test_engine_with_a_reused_pid_is_dead_and_never_signalled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launcher, host = LocalLauncher(), socket.gethostname()
    started = process_start(os.getpid())
    assert started is not None
    own, reused = f"{os.getpid()}:{started}", f"{os.getpid()}:{started + 1}"
    assert launcher.poll(host=host, handle=own).state is ProcessState.ALIVE
    assert launcher.poll(host=host, handle=reused).state is ProcessState.DEAD
    assert launcher.poll(host="elsewhere", handle=own).state is ProcessState.UNREACHABLE
    for name in ("kill", "killpg"):
        monkeypatch.setattr(os, name, lambda *_: pytest.fail("a stranger was signalled"))
    for stranger in ({"host": host, "handle": reused}, {"host": "elsewhere", "handle": own}):
        launcher.ask_to_stop(**stranger)
        launcher.kill(**stranger)
