"""The agent's loop: one frame in, one frame out, until the host closes the stream.

The modules of operations are imported after the greeting, while the host reads it.
"""

from __future__ import annotations

import errno
import os

from .children import OutOfMemoryScore, harden, sweep
from .wire import MAX_FRAME, decode, frame

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Stream:
    """The protocol's two streams, moved away from descriptors 0, 1 and 2 so that no child inherits them."""

    def __init__(self) -> None:
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        self.fd_in = os.dup(0)
        self.fd_out = os.dup(1)
        # containerd closes an exec's stdin as soon as one of its output streams ends.
        self.fd_err = os.dup(2)
        null = os.open("/dev/null", os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        os.close(null)
        self.score = OutOfMemoryScore()

    def read_frame(self) -> dict[str, Any]:
        """Read the next frame. Raises EOFError at the end of the stream, ValueError on malformed input."""
        size = int.from_bytes(self._read_exactly(4), "big")
        if size > MAX_FRAME:
            raise ValueError("frame too large")
        value = decode(self._read_exactly(size))
        if not isinstance(value, dict):
            raise ValueError("a frame is not a table")
        return value

    def _read_exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = os.read(self.fd_in, min(size - len(data), 1 << 20))
            if not part:
                raise EOFError
            data += part
        return bytes(data)

    def write_frame(self, value: object) -> None:
        """Send one frame, however large."""
        view = memoryview(frame(value))
        while view:
            view = view[os.write(self.fd_out, view) :]


def _execute(request: dict[str, Any], stream: Stream) -> dict[str, object]:
    from .processes import Command

    try:
        command = Command(request, stream.score, stream.fd_in, stream.read_frame)
    except OSError as error:
        return {"errno": error.errno, "message": "no process could be started", "resource": True}
    try:
        return command.run()
    except OSError as error:  # a command may have lowered this process's limits
        return {"errno": error.errno, "message": "the command could not be monitored", "resource": True}


def _answer(request: dict[str, Any], stream: Stream) -> dict[str, object]:
    from .files import OPERATIONS

    try:
        if request["op"] == "exec":
            return _execute(request, stream)
        try:
            return OPERATIONS[request["op"]](request)
        except ValueError as error:  # a null character in a path
            return {"errno": errno.EINVAL, "message": str(error)}
    except OSError as error:
        return {"errno": error.errno or errno.EIO, "message": error.strerror or str(error)}
    except RecursionError:
        return {"errno": errno.ENAMETOOLONG, "message": "too many nested folders"}
    except MemoryError:
        return {"errno": errno.ENOMEM, "message": "out of memory", "resource": True}


def main(facts: dict[str, object] | None = None) -> None:
    """Serve stdin and stdout until the host closes them, then kill all remaining processes.

    ``facts`` are added to the greeting.
    """
    harden()
    stream = Stream()
    try:
        stream.write_frame({"hello": 1, "pid": os.getpid(), **(facts or {})})
        from . import files, processes  # noqa: F401

        while True:
            request = stream.read_frame()
            if request["op"] == "cancel":  # sent before the reply arrived
                continue
            reply = _answer(request, stream)
            reply["id"] = request["id"]
            try:
                stream.write_frame(reply)
            except ValueError as error:
                stream.write_frame({"id": request["id"], "errno": errno.EFBIG, "message": str(error)})
    except (EOFError, BrokenPipeError, ConnectionResetError, TimeoutError):
        pass
    finally:
        sweep()
