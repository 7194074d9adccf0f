"""Commands inside the sandbox: streams, capture, deadline, killing of the whole process tree."""

from __future__ import annotations

import os
import select
import time

from .children import start, sweep
from .limits import process_limit, threads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .children import OutOfMemoryScore

_CHUNK = 1 << 16
_REAP_MS = 1000.0
_COUNT_S = 0.2
_SIGCHLD = 17


def _wake_on_child(fd: int) -> None:
    """Write to ``fd`` whenever a child ends, adopted orphans included; -1 disables it."""
    try:
        import _signal as signal  # type: ignore[import-not-found]  # the enums of ``signal`` cost milliseconds
    except ImportError:
        import signal
    signal.signal(_SIGCHLD, signal.SIG_DFL if fd < 0 else lambda *_: None)
    signal.set_wakeup_fd(fd, warn_on_full_buffer=False)


class Capture:
    """Head and tail of a stream, at most ``cap`` bytes, with the rest counted."""

    def __init__(self, cap: int) -> None:
        self.head_cap = cap - cap // 2
        self.tail_cap = cap // 2
        self.head = bytearray()
        self.tail = bytearray()
        self.total = 0

    def feed(self, data: bytes) -> None:
        """Append the next bytes of the stream."""
        self.total += len(data)
        room = self.head_cap - len(self.head)
        if room > 0:
            self.head += data[:room]
            data = data[room:]
        self.tail += data
        if len(self.tail) > self.tail_cap + 4 * _CHUNK:
            self._trim()

    def _trim(self) -> None:
        del self.tail[: max(0, len(self.tail) - self.tail_cap)]

    def take(self) -> tuple[bytes, int]:
        """Return the kept bytes and the number of bytes dropped between head and tail."""
        self._trim()
        kept = bytes(self.head + self.tail)
        return kept, self.total - len(kept)


def _exit_code(status: int) -> int:
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


class Command:
    """One running command with its pipes, deadline and captured output.

    Args:
        request: ``argv, cwd, env, stdin, timeout_ms, output_cap`` (bytes kept of each stream).
        score: the agent's ``oom_score_adj``.
        fd_cancel: becomes readable when the host cancels the command or closes the stream.
        cancel: reads the pending frame from ``fd_cancel``.
    """

    def __init__(
        self,
        request: dict[str, Any],
        score: OutOfMemoryScore,
        fd_cancel: int,
        cancel: Callable[[], object],
    ) -> None:
        self.fd_cancel = fd_cancel
        self.cancel = cancel
        self.stdin = memoryview(request["stdin"])
        self.started = time.monotonic()
        self.deadline = self.started + request["timeout_ms"] / 1000.0
        self.timed_out = False
        self.cancelled = False
        self.process_limit = process_limit()
        self.counted = self.started
        self.crowded = False
        self.status: int | None = None
        self.fd_ended, self.fd_wake = os.pipe()
        for fd in (self.fd_ended, self.fd_wake):
            os.set_blocking(fd, False)
        _wake_on_child(self.fd_wake)
        try:
            self.pid, self.fd_stdin, out, err = self._open(request, score)
        except OSError:
            self._stop_waking()
            raise
        self.streams = (out, err)
        self.captures = {fd: Capture(request["output_cap"]) for fd in self.streams}
        self.open_fds = [out, err]

    @staticmethod
    def _open(request: dict[str, Any], score: OutOfMemoryScore) -> tuple[int, int, int, int]:
        (in_r, in_w), (out_r, out_w), (err_r, err_w) = os.pipe(), os.pipe(), os.pipe()
        try:
            pid = start(request, (in_r, out_w, err_w), score)
        except OSError:
            for fd in (in_w, out_r, err_r):
                os.close(fd)
            raise
        finally:
            for fd in (in_r, out_w, err_w):
                os.close(fd)
        os.set_blocking(in_w, False)
        return pid, in_w, out_r, err_r

    def run(self) -> dict[str, object]:
        """Wait for exit, deadline or cancellation; kill the remaining processes; return the result."""
        try:
            self._wait()
        finally:
            self._close_stdin()
            self.status = sweep().get(self.pid, self.status)
            self._drain()
            self._stop_waking()
        if self.crowded:
            self.captures[self.streams[1]].feed(b"killed: more than %d processes\n" % self.process_limit)
        (out, out_dropped), (err, err_dropped) = (self.captures[fd].take() for fd in self.streams)
        return {
            "exit_code": None if self.timed_out or self.status is None else _exit_code(self.status),
            "stdout": out,
            "stderr": err,
            "dropped": out_dropped + err_dropped,
            "timed_out": self.timed_out,
            "ms": int((time.monotonic() - self.started) * 1000),
        }

    def _wait(self) -> None:
        poller = select.poll()
        for fd in (*self.open_fds, self.fd_cancel, self.fd_ended):
            poller.register(fd, select.POLLIN)
        if self.stdin:
            poller.register(self.fd_stdin, select.POLLOUT)
        else:
            self._close_stdin()
        while not self.cancelled:
            left_ms = (self.deadline - time.monotonic()) * 1000
            if left_ms <= 0:
                self.timed_out = True
                return
            pause_ms = _COUNT_S * 1000 if self.process_limit else _REAP_MS
            ready = [fd for fd, _ in poller.poll(min(left_ms + 1, pause_ms))]
            for fd in ready:
                self._handle(fd, poller)
            if not ready or self.fd_ended in ready:
                self._reap()
            if self.status is not None:
                return
            if self.process_limit and time.monotonic() - self.counted > _COUNT_S:
                self.crowded = threads() > self.process_limit
                self.counted = time.monotonic()
                if self.crowded:
                    return

    def _stop_waking(self) -> None:
        _wake_on_child(-1)
        os.close(self.fd_ended)
        os.close(self.fd_wake)

    def _reap(self) -> None:
        """Collect the status of ended children: the command, or orphans that would fill the process limit."""
        try:
            os.read(self.fd_ended, 4096)
        except BlockingIOError:
            pass
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self.pid:
                    self.status = status
        except ChildProcessError:
            pass

    def _handle(self, fd: int, poller: select.poll) -> None:
        if fd in self.captures:
            if not self._read(fd):
                poller.unregister(fd)
        elif fd == self.fd_cancel:
            self.cancel()
            self.cancelled = True
        elif fd == self.fd_stdin:
            try:
                self.stdin = self.stdin[os.write(fd, self.stdin[:_CHUNK]) :]
            except BlockingIOError:
                return
            except OSError:
                self.stdin = self.stdin[:0]
            if not self.stdin:
                poller.unregister(fd)
                self._close_stdin()

    def _read(self, fd: int) -> bool:
        data = os.read(fd, _CHUNK)
        if data:
            self.captures[fd].feed(data)
            return True
        self._close_output(fd)
        return False

    def _close_output(self, fd: int) -> None:
        self.open_fds.remove(fd)
        os.close(fd)

    def _close_stdin(self) -> None:
        if self.fd_stdin >= 0:
            os.close(self.fd_stdin)
            self.fd_stdin = -1

    def _drain(self) -> None:
        for fd in list(self.open_fds):
            os.set_blocking(fd, False)
            try:
                while self._read(fd):
                    pass
            except BlockingIOError:  # a process that could not be killed still holds the pipe
                self._close_output(fd)
