"""Receive test outcomes in a process that runs none of the project's code, and sign the record.

A plain script for Python ≥ 3.6, standard library only. As a program it runs a test script: ``python3 -I -S
-B trainyard_witness.py FOLDER`` with a key and a token on the first two lines of stdin and the script after
them. Recorders of the script's pytest sessions connect to the socket ``FOLDER/witness`` after the script
has written the token to ``FOLDER/begin``. When the script has ended, the record is written to
``FOLDER/record``, signed with the key; the program has the script's exit code. ``pytest_driver`` uses the
same classes over a pair of sockets.

The key never leaves this process. The script's processes can read neither this process's memory and
descriptors nor those of the script's shell. Each message of a recorder has a running digest, so that code
that only writes to the recorder's socket breaks the session. A session is accepted from a process of the
script that does not descend from another session's process.
"""

import hashlib
import os
import select
import sys
from _socket import AF_UNIX, SO_PEERCRED, SOCK_STREAM, SOL_SOCKET
from _socket import socket as Socket  # noqa: N812  the ``socket`` module costs milliseconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

KEY_BYTES = 32
TAG_CHARS = 16
ENDED = b"ENDED"
"""First word of the message that ends a session; the exit status and, from the driver, a report follow."""
BROKEN = b"ALTERED the messages of pytest's recorder were written by other code"
_PR_SET_DUMPABLE = 4
_SIGPIPE, _SIGCHLD, _SIGXFSZ = 13, 17, 25
_CHUNK = 1 << 16
_PATIENCE_MS = 1000


class Seal:
    """HMAC-SHA256 signatures with one key.

    Args:
        key: at most 64 bytes.
    """

    def __init__(self, key: bytes) -> None:
        padded = bytearray(key.ljust(64, b"\0"))
        self._inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in padded))
        self._outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in padded))

    def sign(self, payload: bytes) -> bytes:
        """Return the hexadecimal signature of ``payload``, a line feed, and ``payload``."""
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(payload)
        outer.update(inner.digest())
        return outer.hexdigest().encode() + b"\n" + payload


class Session:
    """Messages of one recorder, checked as they arrive.

    Args:
        connection: the recorder's socket; the session's key is sent immediately.
    """

    def __init__(self, connection: "Socket") -> None:
        self.connection = connection
        self.ending = b""
        """Text of the last message of an ended session."""
        self._lines: list[bytes] = []
        self._rest = b""
        self._broken = False
        key = os.urandom(KEY_BYTES)
        self._chain = hashlib.sha256(key)
        connection.sendall(key)
        connection.setblocking(False)

    def receive(self) -> bool:
        """Read what has arrived; return whether more may come."""
        try:
            data = self.connection.recv(_CHUNK)
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._take(line)
        return bool(data)

    def drain(self) -> None:
        """Read everything that has arrived."""
        poller = select.poll()
        poller.register(self.connection.fileno(), select.POLLIN)
        while poller.poll(0) and self.receive():
            pass

    def _take(self, line: bytes) -> None:
        tag, _, body = line.partition(b" ")
        self._chain.update(body)
        if self._broken or self.ending or tag != self._chain.hexdigest()[:TAG_CHARS].encode():
            self._broken = True
        elif body.startswith(ENDED):
            self.ending = body[len(ENDED) + 1 :]
        else:
            self._lines.append(body)

    def payload(self) -> bytes:
        """Return the exit status (-1 if the session did not end), then one line per finding and outcome."""
        status = self.ending.partition(b" ")[0] or b"-1"
        return b"\n".join([status, *([BROKEN] if self._broken else []), *self._lines])


class Sessions:
    """Server that accepts recorders connecting from a script's processes.

    Args:
        folder: folder of the socket and the script's token file.
        token: text that the script writes when its tests begin.
    """

    def __init__(self, folder: str, token: bytes) -> None:
        self.all: list[Session] = []
        self.open: dict[int, Session] = {}
        self.script = 0
        """Process identifier of the script."""
        self._processes: set[tuple[int, str]] = set()
        self._begin = os.path.join(folder, "begin")
        self._token = token
        self._listener = Socket(AF_UNIX, SOCK_STREAM)
        self._listener.bind(os.path.join(folder, "witness"))
        self._listener.listen(64)
        self._listener.setblocking(False)

    def wait(self, wake: int) -> None:
        """Handle connections and messages until ``wake`` is readable or a timeout has passed."""
        poller = select.poll()
        for fd in (wake, self._listener.fileno(), *self.open):
            poller.register(fd, select.POLLIN)
        for fd, _ in poller.poll(_PATIENCE_MS):
            if fd == self._listener.fileno():
                self._accept()
            elif fd in self.open and not self.open[fd].receive():
                self.open.pop(fd).connection.close()

    def finish(self) -> bytes:
        """Return the record of all sessions."""
        for session in self.open.values():
            session.drain()
        return b"\n\n".join(session.payload() for session in self.all)

    def _accept(self) -> None:
        try:
            fd, _ = self._listener._accept()  # type: ignore[attr-defined]
        except OSError:
            return
        connection = Socket(AF_UNIX, SOCK_STREAM, 0, fd)
        pid = int.from_bytes(connection.getsockopt(SOL_SOCKET, SO_PEERCRED, 4), sys.byteorder)
        lineage = _ancestry(pid)
        is_expected = self.script in [ancestor for ancestor, _ in lineage] and self._has_begun()
        if not is_expected or not self._processes.isdisjoint(lineage):
            connection.close()
            return
        self._processes.add(lineage[0])
        try:
            session = Session(connection)
        except OSError:
            connection.close()
            return
        self.all.append(session)
        self.open[connection.fileno()] = session

    def _has_begun(self) -> bool:
        if self._token:
            try:
                with open(self._begin, "rb") as file:
                    if file.read(len(self._token) + 1) != self._token:
                        return False
            except OSError:
                return False
            self._token = b""
        return True


def _ancestry(pid: int) -> "list[tuple[int, str]]":
    """Return a process and its ancestors, each as process identifier and start time."""
    lineage = []
    while pid > 0:
        try:
            with open("/proc/%d/stat" % pid, "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            break
        lineage.append((pid, fields[19].decode()))
        pid = int(fields[1])
    return lineage


def protect() -> None:
    """Make this process's memory and descriptors unreadable to other processes of the same user."""
    try:
        import _ctypes  # a fraction of the start-up cost of ctypes

        address = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # type: ignore[arg-type]
        _ctypes.call_function(address, (_PR_SET_DUMPABLE, 0, 0, 0, 0))
    except (ImportError, AttributeError, OSError, TypeError):
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def _start(folder: str, script: bytes, prepare: "Callable[[], None]") -> int:
    """Start bash, which reads the whole script before its first command; return its process identifier."""
    shell = _unreadable(folder, "/bin/bash")
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            prepare()
            os.dup2(reading, 0)
            for path in (shell, "/bin/bash"):
                try:
                    os.execv(path, ["/bin/bash", "-c", 'eval "$(cat)"'])  # noqa: S606
                except OSError:
                    continue
        finally:
            os._exit(127)
    os.close(reading)
    view = memoryview(script)
    try:
        while view:
            view = view[os.write(writing, view) :]
    except OSError:
        pass  # bash has ended; the caller gets its exit code
    os.close(writing)
    return pid


def _unreadable(folder: str, program: str) -> str:
    """Return a copy of a program without read permission: the kernel hides its processes' memory."""
    path = os.path.join(folder, os.path.basename(program))
    with open(program, "rb") as source, open(path, "wb") as target:
        target.write(source.read())
    os.chmod(path, 0o111)  # noqa: S103
    return path


def main() -> None:
    """Run the script; see the module's docstring."""
    try:
        import _signal as signal  # type: ignore[import-not-found]  # the enums of ``signal`` cost milliseconds
    except ImportError:
        import signal
    protect()
    folder = sys.argv[1]
    key, token, script = sys.stdin.buffer.read().split(b"\n", 2)
    seal = Seal(key)
    wake, woken = os.pipe()
    for fd in (wake, woken):
        os.set_blocking(fd, False)
    signal.signal(_SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken)
    sessions = Sessions(folder, token)

    def undo() -> None:
        for number in (_SIGPIPE, _SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)

    sessions.script = pid = _start(folder, script, undo)
    ended = 0
    while not ended:
        sessions.wait(wake)
        try:
            os.read(wake, 4096)
        except BlockingIOError:
            pass
        ended, status = os.waitpid(pid, os.WNOHANG)
    with open(os.path.join(folder, "record"), "wb") as file:
        file.write(seal.sign(sessions.finish()))
    os._exit(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))


if __name__ == "__main__":
    main()
