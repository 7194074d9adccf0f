"""Commands inside the sandbox: start, capture, deadline, and the death of the whole process tree.

Here because only a process inside the PID namespace can kill a tree for certain: as init it signals
everything, as a subreaper it finds every orphan below itself.
"""

from __future__ import annotations

import errno
import os
import select
import time

from .limits import apply_rlimits, descendants, process_limit, threads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_CHUNK = 1 << 16
_KILL_S = 5.0
_FORK_S = 2.0
_REAP_MS = 1000.0
_COUNT_S = 0.2
_SIGINT, _SIGKILL, _SIGPIPE, _SIGCHLD, _SIGXFSZ = 2, 9, 13, 17, 25
_PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 4, 36


def harden() -> None:
    """Make this process untouchable by the commands it will run, and the parent of every orphan."""
    _prctl(_PR_SET_DUMPABLE, 0)  # commands of the same user can neither trace us nor open our descriptors
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _set_signals(default=(_SIGINT,), ignore=(_SIGPIPE,))  # an init ignores what has no handler
    os.umask(0o022)


def _prctl(option: int, argument: int) -> None:
    try:
        import _ctypes  # a fraction of the start-up cost of ctypes

        address = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # type: ignore[arg-type]
        _ctypes.call_function(address, (option, argument, 0, 0, 0))
    except (ImportError, AttributeError, OSError, TypeError):
        import ctypes

        ctypes.CDLL(None).prctl(option, argument, 0, 0, 0)


def _set_signals(*, default: tuple[int, ...] = (), ignore: tuple[int, ...] = ()) -> None:
    try:
        import _signal as signal  # type: ignore[import-not-found]  # the enums of ``signal`` cost milliseconds
    except ImportError:
        import signal
    for number in default:
        signal.signal(number, signal.SIG_DFL)
    for number in ignore:
        signal.signal(number, signal.SIG_IGN)


def _wake_on_child(fd: int) -> None:
    """Write to ``fd`` whenever a child ends, adopted orphans included; -1 disables it."""
    try:
        import _signal as signal
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


def _kill_all() -> None:
    # Only an init may use -1: anywhere else it could reach processes that are not ours.
    for pid in [-1] if os.getpid() == 1 else [process.pid for process in descendants()]:
        try:
            os.kill(pid, _SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass


def sweep() -> dict[int, int]:
    """Kill and reap every descendant, ``setsid`` or not; return wait statuses by pid."""
    statuses: dict[int, int] = {}
    give_up = time.monotonic() + _KILL_S
    pause = 0.0002
    while True:
        _kill_all()
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                statuses[pid] = status
        except ChildProcessError:
            return statuses
        if time.monotonic() > give_up:
            return statuses
        time.sleep(pause)
        pause = min(pause * 2, 0.02)


def _fork() -> int:
    give_up = time.monotonic() + _FORK_S
    while True:
        try:
            return os.fork()
        except OSError:
            if time.monotonic() > give_up:
                raise
            sweep()
            time.sleep(0.01)


def _become(argv: list[str], cwd: str, env: dict[str, str], fds: tuple[int, int, int]) -> None:
    """Turn the forked child into the command; never returns."""
    try:
        os.setsid()
        for target, fd in enumerate(fds):
            os.dup2(fd, target)
        _set_signals(default=(_SIGPIPE, _SIGXFSZ))
        _prctl(_PR_SET_DUMPABLE, 1)  # or our own /proc files belong to root
        try:
            with open("/proc/self/oom_score_adj", "w") as file:
                file.write("1000")  # the command pays for its own hunger, not the agent
        except OSError:
            pass
        apply_rlimits()
        try:
            os.chdir(cwd)
            os.execvpe(argv[0], argv, env)
        except OSError as error:
            os.write(2, ("%s: %s\n" % (error.filename or argv[0], error.strerror)).encode("utf-8", "replace"))
            os._exit(126 if error.errno in (errno.EACCES, errno.ENOEXEC) else 127)
    finally:
        os._exit(127)


def _exit_code(status: int) -> int:
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


class Command:
    """One running command with its pipes, deadline and captured output.

    Args:
        request: ``argv, cwd, env, stdin, timeout_ms, output_cap`` (bytes kept of each stream).
        fd_cancel: becomes readable when the host wants the command gone (or is gone itself).
        cancel: consumes what is readable there.
    """

    def __init__(self, request: dict[str, Any], fd_cancel: int, cancel: Callable[[], object]) -> None:
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
            self.pid, self.fd_stdin, out, err = self._start(request)
        except OSError:
            self._stop_waking()
            raise
        self.streams = (out, err)
        self.captures = {fd: Capture(request["output_cap"]) for fd in self.streams}
        self.open_fds = [out, err]

    @staticmethod
    def _start(request: dict[str, Any]) -> tuple[int, int, int, int]:
        (in_r, in_w), (out_r, out_w), (err_r, err_w) = os.pipe(), os.pipe(), os.pipe()
        try:
            pid = _fork()
            if pid == 0:
                _become(request["argv"], request["cwd"], request["env"], (in_r, out_w, err_w))
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
