"""Function calls on hostile input in a separate process, with limits on processor time and memory.

What tests printed was chosen by a patch, and some of the published parsers' regular expressions take time
squared over it: a minute over a line of 200 kB. A match holds the interpreter's lock to its end: in a thread
it would stop the event loop all the same. So the kernel ends the process by a timer of its processor time,
which a busy machine does not shorten, and the next call gets a fresh one. At most one process a processor,
each reads one input at a time; they end with their parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection, Pipe
from typing import Any, ParamSpec, TypeVar, cast

from engine.errors import HostileInputError, TrainyardError

P = ParamSpec("P")
T = TypeVar("T")

CPU_S = 60.0
"""Processor time limit of one call, seconds; an honest log of 10 MiB takes a few seconds."""
_MEMORY_BYTES = 4 << 30
_THREADS = ThreadPoolExecutor(max_workers=os.cpu_count() or 1, thread_name_prefix="isolated_worker")
_of_thread = threading.local()


async def run_isolated(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run ``function`` in a separate process and return its result.

    Args:
        function: a module-level function, so that it can be pickled by name.
        args, kwargs: its arguments; arguments and result must be picklable.

    Raises:
        HostileInputError: the call exceeded a limit or crashed on its input; the message says which.
        TrainyardError: raised by the function itself.
    """
    call = (function, args, kwargs, CPU_S)
    return cast(T, await asyncio.get_running_loop().run_in_executor(_THREADS, _call, call))


def _call(call: tuple[Any, ...]) -> Any:
    worker: _Worker | None = getattr(_of_thread, "worker", None)
    if worker is None or not worker.is_alive():
        worker = _of_thread.worker = _Worker()
    return worker.call(call)


class _Worker:
    """Worker process of one thread."""

    def __init__(self) -> None:
        self._ours, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "engine.grading.logs.isolated_worker", str(theirs.fileno())],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def __del__(self) -> None:
        self._end()

    def is_alive(self) -> bool:
        """Return whether the worker can take a call."""
        return self._process.poll() is None

    def call(self, call: tuple[Any, ...]) -> Any:
        """Send a call and wait for its result."""
        try:
            self._ours.send(call)
            result, error = self._ours.recv()
        except (EOFError, OSError):
            code = self._end()
            timed_out = code == -signal.SIGPROF
            why = f"took more than {call[-1]:g} s of processor time" if timed_out else f"ended it ({code})"
            raise HostileInputError(f"reading what the tests left behind {why}") from None
        if error is not None:
            raise error
        return result

    def _end(self) -> int:
        self._ours.close()
        self._process.kill()
        return self._process.wait()


def serve(connection: Connection) -> None:
    """Answer calls until the connection closes."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to parent and child
    while True:
        try:
            function, args, kwargs, cpu_s = connection.recv()
        except (EOFError, ConnectionResetError):  # reset: it was killed before it had read our answer
            return
        # SIGPROF has no handler, so that it ends the process inside of a match, too.
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        answer = _answer(function, args, kwargs)
        with contextlib.suppress(BrokenPipeError):  # the next call finds the end of the connection
            connection.send(answer)
        signal.setitimer(signal.ITIMER_PROF, 0)


def _answer(function: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, Exception | None]:
    try:
        return function(*args, **kwargs), None
    except TrainyardError as error:
        return None, error
    except Exception as error:  # a parser may stumble over a log in any way
        why = f"{type(error).__name__}: {str(error)[:200]}"
        return None, HostileInputError(f"what the tests left behind cannot be read ({why})")


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
