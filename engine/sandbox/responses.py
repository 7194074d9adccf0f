"""Parsers and size limits of agent responses: nothing an agent sends is used unchecked.

An agent runs inside the sandbox, where any program may have replaced it. So every operation limits the size
and the number of values of its response, and has a parser. A parser raises ValueError on malformed responses,
and the client closes the connection. For another operation, add its ``Answer``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from engine.patches.trees import FileState, is_plain
from engine.sandbox.agent.wire import MAX_FRAME
from engine.sandbox.base import ExecResult

T = TypeVar("T")
Reply = dict[str, Any]
Stamp = tuple[int, int, int]
"""Mode, size and change time in nanoseconds; equal only for an untouched file."""

STDERR_BYTES = 1 << 20
"""Limit of the agent's error output; a connection that exceeds it is closed."""
GREETING_BYTES = 4 << 20
GREETING_VALUES = 16_384
MAX_FILES = 1_000_000
"""Largest number of files below a workdir."""
_SLACK_BYTES = 1 << 16
"""Allowance for the fields around the content: names, numbers, an error message."""
_SLACK_VALUES = 64
_MAX_LISTED = 10_000
_MAX_PATH = 16_384
_LARGE = 1 << 62
_MESSAGE_CHARS = 500


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """Size limits and parser of an operation's response."""

    read: Callable[[Reply], T]
    """Parser of the response. Raises ValueError."""
    content_bytes: int = 0
    """Largest content, without the fixed allowance."""
    values: int = 0
    """Largest number of values, without the fixed allowance."""

    @property
    def max_bytes(self) -> int:
        """Return the size of the largest frame accepted."""
        return min(MAX_FRAME, self.content_bytes + _SLACK_BYTES)

    @property
    def max_values(self) -> int:
        """Return the largest number of values accepted."""
        return self.values + _SLACK_VALUES


@dataclass(frozen=True, slots=True, kw_only=True)
class Greeting:
    """The agent's first message."""

    env: Mapping[str, str]
    """Environment variables of the image, where the agent reports them."""
    api: tuple[str, int] | None
    """Host and port of the cluster's API as seen from the pod; None outside a cluster."""


def greeting(reply: Reply) -> Greeting:
    """Parse a greeting. Raises ValueError."""
    env = reply.get("env", {})
    if not isinstance(env, dict):
        raise ValueError("the environment is not a dict")
    for name, value in env.items():
        if not isinstance(value, str) or not name or "=" in name or "\0" in name + value:
            raise ValueError("invalid environment variable")
    return Greeting(env=env, api=None if reply.get("api") is None else _address(reply["api"]))


def _address(value: object) -> tuple[str, int]:
    if not isinstance(value, list) or len(value) != 2 or not all(isinstance(part, str) for part in value):
        raise ValueError("invalid address")
    host, port = value
    if len(host) > 255 or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise ValueError("invalid address")
    return host, int(port)


def executed(output_cap: int) -> Answer[ExecResult]:
    """Return the response type of ``exec``."""

    def read(reply: Reply) -> ExecResult:
        timed_out = _of(bool, reply, "timed_out")
        code = None if reply.get("exit_code") is None else _number(reply, "exit_code", 255)
        streams = _of(bytes, reply, "stdout"), _of(bytes, reply, "stderr")
        if any(len(stream) > output_cap for stream in streams):
            raise ValueError("more output than requested")
        return ExecResult(
            exit_code=None if timed_out else code,
            stdout=streams[0],
            stderr=streams[1],
            timed_out=timed_out,
            seconds=_number(reply, "ms") / 1000,
            dropped_bytes=_number(reply, "dropped"),
        )

    return Answer(read, content_bytes=2 * output_cap)


def content(max_bytes: int) -> Answer[bytes]:
    """Return the response type of ``read``."""

    def read(reply: Reply) -> bytes:
        data = _of(bytes, reply, "data")
        if len(data) > max_bytes:
            raise ValueError("more content than requested")
        return data

    return Answer(read, content_bytes=max_bytes)


def fetched(count: int) -> Answer[list[FileState | None]]:
    """Return the response type of ``fetch`` for ``count`` files."""

    def read(reply: Reply) -> list[FileState | None]:
        rows = _of(list, reply, "files")
        if len(rows) != count:
            raise ValueError("another number of files than requested")
        return [None if row is None else _file(row) for row in rows]

    return Answer(read, content_bytes=MAX_FRAME, values=3 * count)


def _file(row: object) -> FileState:
    if not isinstance(row, list) or len(row) != 2 or type(row[0]) is not int or not isinstance(row[1], bytes):
        raise ValueError("invalid file")
    if not 0 <= row[0] < 1 << 16:
        raise ValueError("invalid file mode")
    return FileState(row[0], row[1])


def _listed(reply: Reply) -> list[str]:
    paths = _of(list, reply, "paths")
    if len(paths) > _MAX_LISTED or not all(isinstance(path, str) for path in paths):
        raise ValueError("invalid list of names")
    if any(len(path) > _MAX_PATH or "\0" in path for path in paths):
        raise ValueError("invalid file name")
    return paths


NOTHING: Answer[None] = Answer(lambda _: None)
"""Response type of ``write`` and ``commit``."""
LISTED: Answer[list[str]] = Answer(_listed, content_bytes=MAX_FRAME, values=_MAX_LISTED)
"""Response type of ``list``."""
TREE: Answer[bytes] = Answer(lambda reply: _of(bytes, reply, "tree"), content_bytes=MAX_FRAME)
"""Response type of ``tree``; ``parse_tree`` reads its content."""


def parse_tree(blob: bytes) -> dict[str, Stamp]:
    """Parse the stamps of a ``tree`` response. Raises ValueError; slow for many files."""
    if blob.count(b"\0") >= 2 * MAX_FILES:
        raise ValueError(f"more than {MAX_FILES} files")
    tree: dict[str, Stamp] = {}
    parts = iter(blob.split(b"\0") if blob else [])
    for stamp, raw in zip(parts, parts, strict=True):
        mode, size, changed = (int(part, base) for part, base in zip(stamp.split(), (8, 10, 10), strict=True))
        name = os.fsdecode(raw)
        if not is_plain(name) or not 0 <= mode < 1 << 16 or not 0 <= size < _LARGE or abs(changed) >= _LARGE:
            raise ValueError("invalid tree entry")
        tree[name] = mode, size, changed
    return tree


def failure(reply: Reply) -> tuple[int, str, bool]:
    """Parse an error response into errno, message and whether a limit was hit. Raises ValueError."""
    number = _number(reply, "errno", 4095)
    message = str(reply.get("message"))[:_MESSAGE_CHARS]
    return number, message.encode("utf-8", "replace").decode(), bool(reply.get("resource"))


def _of(kind: type[T], reply: Reply, name: str) -> T:
    value = reply.get(name)
    if not isinstance(value, kind):
        raise ValueError(f"no {kind.__name__} as '{name}'")
    return value


def _number(reply: Reply, name: str, most: int = _LARGE) -> int:
    value = reply.get(name)
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"no number from 0 to {most} as '{name}'")
    return value
