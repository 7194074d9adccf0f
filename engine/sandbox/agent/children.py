"""Processes below the agent: starting one, killing and reaping all.

Only a process inside the PID namespace can reliably kill a whole tree: as init it can signal every process,
as a subreaper it finds every orphan among its descendants.
"""

from __future__ import annotations

import errno
import os
import resource
import time

from .limits import apply_rlimits, descendants, has_rlimits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_KILL_S = 5.0
_FORK_S = 2.0
_SIGINT, _SIGKILL, _SIGPIPE, _SIGXFSZ = 2, 9, 13, 25
_PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 4, 36
_HIGHEST_SCORE = 1000


def harden() -> None:
    """Protect this process from the commands it will run, and make it the parent of every orphan."""
    _prctl(_PR_SET_DUMPABLE, 0)  # commands of the same user can neither trace us nor open our descriptors
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _set_signals(default=(_SIGINT,), ignore=(_SIGPIPE,))  # an init ignores signals without a handler
    os.umask(0o022)
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (1, 1))  # 0 leaves cores to a handler outside of the sandbox
    except (OSError, ValueError):
        pass  # the limit is lower already, and cannot be raised


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


def _kill_all() -> None:
    # Only an init may use -1: anywhere else it could reach processes that are not ours.
    for pid in [-1] if os.getpid() == 1 else [process.pid for process in descendants()]:
        try:
            os.kill(pid, _SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass


def sweep() -> dict[int, int]:
    """Kill and reap every descendant, ``setsid`` ones included; return wait statuses by pid."""
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


class OutOfMemoryScore:
    """The agent's ``oom_score_adj``, raised while a command starts.

    A command inherits the highest score, so that the kernel kills it before the agent. Afterwards the agent's
    own score is restored; in a pod it may be above zero and cannot be lowered.
    """

    def __init__(self) -> None:
        _prctl(_PR_SET_DUMPABLE, 1)  # or our own /proc files belong to root; no command runs yet
        try:
            self.fd = os.open("/proc/self/oom_score_adj", os.O_RDWR)
            self.own = os.read(self.fd, 16)
        except OSError:
            self.fd, self.own = -1, b""
        _prctl(_PR_SET_DUMPABLE, 0)

    def raise_to_highest(self) -> None:
        """Raise the score of this process, which children inherit, to the maximum."""
        self._write(b"%d" % _HIGHEST_SCORE)

    def restore(self) -> None:
        """Restore the initial score of this process."""
        self._write(self.own)

    def _write(self, score: bytes) -> None:
        try:
            if self.fd >= 0:
                os.write(self.fd, score)
        except OSError:  # must not fail a command that already runs
            pass


def _find(program: str, env: dict[str, str]) -> str:
    """Return the path of a program, looked up as ``os.execvpe`` does. Raises OSError."""
    if "/" in program:
        return program
    for folder in env.get("PATH", os.defpath).split(":"):
        path = os.path.join(folder or ".", program)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), program)


def _spawn(
    argv: list[str], cwd: str, env: dict[str, str], fds: tuple[int, int, int], score: OutOfMemoryScore
) -> int:
    """Start a command without copying the agent's memory and return its process id.

    Raises only before the command exists: OSError, ValueError for text with a null character, and
    NotImplementedError where the C library is too old.
    """
    os.chdir(cwd)
    try:
        score.raise_to_highest()
        actions = [(os.POSIX_SPAWN_DUP2, fd, target) for target, fd in enumerate(fds)]
        path, defaults = _find(argv[0], env), (_SIGPIPE, _SIGXFSZ)
        return os.posix_spawn(path, argv, env, file_actions=actions, setsid=True, setsigdef=defaults)
    finally:
        score.restore()
        try:
            os.chdir("/")
        except OSError:
            pass


def start(request: dict[str, Any], fds: tuple[int, int, int], score: OutOfMemoryScore) -> int:
    """Start the command of a request on its three streams and return its process id."""
    argv, cwd, env = request["argv"], request["cwd"], request["env"]
    if hasattr(os, "posix_spawn") and not has_rlimits():  # Python 3.8
        try:
            return _spawn(argv, cwd, env, fds, score)
        except (OSError, ValueError, NotImplementedError):
            pass  # a fork reports the reason on the command's own stderr, with a shell's status
    pid = _fork()
    if pid == 0:
        _become(argv, cwd, env, fds)
    return pid


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
                file.write("%d" % _HIGHEST_SCORE)  # out of memory, the kernel kills the command first
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
