"""Guard of processes: runs a command and ends everything it started when the owner has ended.

Run as a script in a session of its own, with a pipe as standard input whose other end only the owner holds.
End of file there means that the owner is gone, even by SIGKILL: all descendants are killed at once. SIGTERM
ends the command first, and what remains after ``GRACE_S``. Descendants that left the session are found too:
orphans become children of the guard. Only the standard library is imported.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from types import FrameType

GRACE_S = 10.0
"""Time for the command to end by itself after SIGTERM, seconds."""
_POLL_S = 0.2
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def main(command: list[str]) -> int:
    """Run the command until it ends or must end; return its exit status, negative for a signal."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    parent = os.getppid()
    deadline: list[float] = []

    def end(_signal: int, _frame: FrameType | None) -> None:
        deadline[:] = deadline or [time.monotonic() + GRACE_S]

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),
    )
    is_told = False
    status: int | None = None
    while status is None:
        if select.select([0], [], [], _POLL_S)[0] or os.getppid() != parent:
            break
        if deadline and not is_told:
            is_told = True
            process.terminate()
        if deadline and time.monotonic() > deadline[0]:
            break
        status = _reap().get(process.pid)
    _kill_descendants()
    return 1 if status is None else os.waitstatus_to_exitcode(status)


def _reap() -> dict[int, int]:
    """Collect ended children, adopted ones included; return their statuses by pid."""
    ended = {}
    try:
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended[found[0]] = found[1]
    except ChildProcessError:
        pass
    return ended


def _kill_descendants() -> None:
    while found := _descendants():
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.01)
        _reap()
    _reap()


def _descendants() -> list[int]:
    """Return the living descendants of this process."""
    children = defaultdict(list)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state not in "ZX":
            children[int(parent)].append(int(stat.parent.name))
    found, pending = [], [os.getpid()]
    while pending:
        below = children[pending.pop()]
        found += below
        pending += below
    return found


def _end_as(status: int) -> None:
    """End this process as the command ended: with its exit code, or by the signal that ended it."""
    if status >= 0:
        sys.exit(status)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if -status not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)


if __name__ == "__main__":
    _end_as(main(sys.argv[1:]))
