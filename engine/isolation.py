"""Function calls on hostile input in a separate process, with limits on processor time and memory.

A patch controls the output of its tests, and some published parsers' regular expressions take quadratic time
on it: a minute for a line of 200 kB. CPython's own parser takes quadratic memory on an import of many parts
(1.7 GiB for 40,000), and Pygments quadratic time on blank lines. A match holds the interpreter's lock to its
end, so in a thread it would still block the event loop. Instead, the kernel kills the process at a limit of
processor time, which a busy machine does not shorten, and the next call gets a fresh process. There is at
most one process per processor and ``Limits``; it reads one input at a time and ends with its parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from typing import Any, TypeVar, cast

from engine.errors import HostileInputError, SlowInputError, TrainyardError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of calls."""

    subject: str
    """Name of the input in error messages."""
    cpu_s: float
    """Processor time of one call, seconds."""
    memory_bytes: int
    """Address space of the process."""


LOG_LIMITS = Limits("the output of the tests", cpu_s=60.0, memory_bytes=1 << 30)
"""An honest log of 10 MiB takes a few seconds and a third of this memory."""
SOURCE_LIMITS = Limits("the Python source", cpu_s=60.0, memory_bytes=512 << 20)
"""An honest source of 4 MiB takes 0.4 GiB."""
_START_S = 60.0
"""Limit of processor time for the start, which imports the call's module, seconds."""
_of_thread = threading.local()


async def run_isolated(call: Callable[[], T], limits: Limits | None = None) -> T:
    """Run a function in a separate process and return its result.

    Args:
        call: a module-level function, or ``functools.partial`` of one; it and the result must be picklable.
        limits: limits of the call; None uses ``LOG_LIMITS``.

    Raises:
        HostileInputError: the call exceeded a limit or crashed on its input; the message says which.
        TrainyardError: raised by the function itself.
    """
    limits = limits or LOG_LIMITS
    return cast(T, await asyncio.get_running_loop().run_in_executor(_threads(limits), _call, call, limits))


def call_isolated(call: Callable[[], T], limits: Limits) -> T:
    """Do the same as ``run_isolated`` outside of an event loop."""
    return cast(T, _threads(limits).submit(_call, call, limits).result())


@functools.cache
def _threads(limits: Limits) -> ThreadPoolExecutor:
    """Return the thread pool for these limits; separate pools keep calls from waiting for those of others."""
    return ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix=f"isolation of {limits.subject}")


def _call(call: Callable[[], Any], limits: Limits) -> Any:
    worker: _Worker | None = getattr(_of_thread, "worker", None)
    if worker is None or not worker.is_alive():
        worker = _of_thread.worker = _Worker(limits)
    return worker.call(call)


class _Worker:
    """Worker process of one thread."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._ours, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "engine.isolation", str(theirs.fileno())],
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                    "OPENBLAS_NUM_THREADS": "1",  # numpy takes address space for each thread
                },
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        self._ours.send(limits)

    def __del__(self) -> None:
        self._end()

    def is_alive(self) -> bool:
        """Return whether the worker can take a call."""
        return self._process.poll() is None

    def call(self, call: Callable[[], Any]) -> Any:
        """Send a call and wait for its result."""
        limits = self._limits
        try:
            self._ours.send(call)
            result, error = self._ours.recv()
        except (EOFError, OSError):
            code = self._end()
            what = f"reading {limits.subject}"
            if code == -signal.SIGPROF:
                raise SlowInputError(f"{what} took more than {limits.cpu_s:g} s of processor time") from None
            raise HostileInputError(f"{what} crashed the process ({code})") from None
        if error is not None:
            raise error
        return result

    def _end(self) -> int:
        self._ours.close()
        self._process.kill()
        return self._process.wait()


def serve(connection: Connection) -> None:
    """Receive the limits, then answer calls within them until the connection closes."""
    limits: Limits = connection.recv()
    most = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (limits.memory_bytes, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to parent and child
    while True:
        signal.setitimer(signal.ITIMER_PROF, _START_S)
        try:
            call = connection.recv()
        except (EOFError, ConnectionResetError):  # reset: the parent was killed before it read the answer
            return
        # SIGPROF has no handler, so it kills the process even inside of a match.
        signal.setitimer(signal.ITIMER_PROF, limits.cpu_s)
        answer = _answer(call, limits)
        with contextlib.suppress(BrokenPipeError):  # the next ``recv`` raises EOFError
            connection.send(answer)


def _answer(call: Callable[[], Any], limits: Limits) -> tuple[Any, Exception | None]:
    try:
        return call(), None
    except TrainyardError as error:
        return None, error
    except Exception as error:  # a parser may stumble over a log in any way
        why = f"{type(error).__name__}: {str(error)[:200]}"
        return None, HostileInputError(f"{limits.subject} cannot be read ({why})")


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
