"""Ctrl-C, SIGTERM and a closed terminal as KeyboardInterrupt, but never while a process is being started.

Python's hooks around ``fork`` swallow exceptions of signal handlers and then leave locks held. If a signal
arrives there, or its exception was swallowed elsewhere, the next ``check`` raises.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _State:
    requested = False
    starting = 0


def raise_on_signals() -> None:
    """Install the signal handlers, once and from the main thread; keep a SIGHUP ignored by ``nohup``."""
    for number in SIGNALS:
        if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _handle)


def _handle(_number: int, _frame: FrameType | None) -> None:
    _State.requested = True
    if not _State.starting:
        raise KeyboardInterrupt


def check() -> None:
    """Raise KeyboardInterrupt if a termination signal has arrived."""
    if _State.requested:
        raise KeyboardInterrupt


@contextmanager
def starting_a_process() -> Iterator[None]:
    """Defer signals to the next ``check`` while a process is started."""
    _State.starting += 1
    try:
        yield
    finally:
        _State.starting -= 1


@contextmanager
def ignored() -> Iterator[None]:
    """Ignore further signals during the shutdown."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
