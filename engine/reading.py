"""Bounded reading of files of unknown origin: regular files only, with limits on size, lines and expansion.

Opening a FIFO blocks until it has a writer, a device is endless, six megabytes of gzip may contain a line of
six gigabytes, and a JSON value takes up to a hundred times the memory of its text.
"""

from __future__ import annotations

import errno
import gzip
import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

MAX_LINE = 16 << 20
"""Maximum length of a line, bytes."""
MAX_JSON = 16 << 20
"""Maximum size of a JSON document that is not a dataset, such as a model's settings, bytes."""
MAX_VALUES = 500_000
"""Maximum number of values in a JSON document or line."""
MAX_NESTING = 100
"""Maximum number of levels of lists and objects, because readers and writers downstream are recursive."""
_GZIP = b"\x1f\x8b"
_EXPANSION, _FREE_EXPANSION = 200, 64 << 20
"""Maximum expansion of a gzip file, and size always allowed, bytes; real rows compress up to 50 times."""
_CHUNK = 1 << 20
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


class LimitError(ValueError):
    """A JSON text exceeds the maximum number of values or levels."""


def open_regular(path: Path) -> IO[bytes]:
    """Open a regular file for reading, without blocking. Raises OSError, also for files of other kinds."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def read_bounded(path: Path, limit: int) -> bytes:
    """Return the content of a regular file. Raises OSError, also if it is longer than ``limit`` bytes."""
    with open_regular(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"larger than {limit >> 20} MiB", str(path))
    return content


def read_json(path: Path, limit: int = MAX_JSON) -> Any:
    """Return the value in a JSON file.

    Raises:
        OSError: the file cannot be read, is not regular, or is longer than ``limit`` bytes.
        ValueError: the content is not JSON, nested too deeply, or of more than ``MAX_VALUES`` values.
    """
    return parse_bounded(read_bounded(path, limit))


def parse_json(text: str | bytes, **options: Any) -> Any:
    """Return ``json.loads`` of a text. Raises ValueError, also if it is nested too deeply."""
    try:
        return json.loads(text, **options)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def parse_bounded(text: str | bytes) -> Any:
    """Return the value of a JSON text within limits.

    Raises:
        LimitError: the text has more than ``MAX_VALUES`` values, or more than ``MAX_NESTING`` levels.
        ValueError: the text is not JSON.
    """
    if isinstance(text, str):
        text = text.encode("utf-8", "surrogatepass")
    check_values(text, MAX_VALUES)
    try:
        value = json.loads(text)
    except RecursionError:
        raise _too_deep() from None
    check_nesting(value)
    return value


def check_nesting(value: Any) -> None:
    """Raise LimitError if a value has more than ``MAX_NESTING`` levels of lists and objects."""
    level = [value]
    for _ in range(MAX_NESTING + 1):
        level = [item for item in level if isinstance(item, dict | list)]
        if not level:
            return
        level = [inner for item in level for inner in (item.values() if isinstance(item, dict) else item)]
    raise _too_deep()


def _too_deep() -> LimitError:
    return LimitError(f"nested more than {MAX_NESTING} levels deep")


def check_values(text: bytes, limit: int) -> None:
    """Raise LimitError if a JSON text has more than ``limit`` values."""
    if _num_marks(text) <= limit:
        return
    num_strings = text.count(b'"') - text.count(b'\\"')  # each starts with a quote that is not escaped
    if num_strings > 4 * limit or _num_marks(_STRING.sub(b"", text)) > limit:
        raise LimitError(f"more than {limit:,} values")


def _num_marks(text: bytes) -> int:
    """Return the number of characters that precede values in a JSON text."""
    return sum(map(text.count, (b",", b"[", b"{")))


def read_bounded_lines(path: Path, *, longest: int | None = None) -> Iterator[tuple[int, bytes, str]]:
    """Yield number (from 1), content and error of the lines of a file, plain or gzip, that are not empty.

    Args:
        longest: maximum length of a line, bytes, ``MAX_LINE`` by default; longer lines are yielded without
            content.

    Raises:
        OSError: the file cannot be read, is not regular, or expands beyond the limit.
        EOFError, zlib.error: the file is cut off or damaged.
    """
    longest = longest or MAX_LINE
    with open_regular(path) as raw:
        size = os.fstat(raw.fileno()).st_size
        is_gzip = raw.read(2) == _GZIP or path.name.endswith(".gz")
        raw.seek(0)
        stream = cast(IO[bytes], gzip.GzipFile(fileobj=raw)) if is_gzip else raw
        limit = max(_FREE_EXPANSION, _EXPANSION * size)
        number = length = 0
        while line := stream.readline(longest + 1):
            number, length, error = number + 1, length + len(line), ""
            if len(line) > longest:
                error = f"longer than {longest >> 20} MiB"
                while not line.endswith(b"\n") and length <= limit and (line := stream.readline(_CHUNK)):
                    length += len(line)
            if length > limit:
                raise OSError(f"it expands to more than {_EXPANSION} times its size")
            if error or line.strip():
                yield number, b"" if error else line, error
