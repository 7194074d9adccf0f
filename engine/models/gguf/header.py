"""Header of a GGUF file: metadata and places of the tensors, read within bounds.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The library ``gguf`` reads damaged headers
without end, and the web application, which reads contexts of models, runs without it.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from engine.errors import CheckpointError
from engine.reading import open_regular

_MAGIC, _VERSIONS = b"GGUF", (2, 3)
_MAX_KEYS, _MAX_TENSORS, _MAX_DIMENSIONS = 4_096, 65_536, 4
_MAX_HEADER = 64 << 20
"""Size of a header with its vocabulary, bytes."""
_MAX_TEXT, _MAX_ITEMS = 1 << 20, 2 << 20
_MAX_KEPT = 1_024
"""Items of arrays that are kept."""
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Place and type of a tensor in a file."""

    shape: tuple[int, ...]
    """In torch's order."""
    type: int
    """Number of ggml's type."""
    offset: int
    """Of the first byte, from the start of the file."""


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Metadata and tensors of a GGUF file."""

    path: Path
    metadata: Mapping[str, Any]
    """Arrays of texts, and long ones, are left as their lengths."""
    tensors: Mapping[str, StoredTensor]

    @property
    def architecture(self) -> str:
        """Return the name of the architecture, in llama.cpp's terms."""
        return str(self.metadata.get("general.architecture"))

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value of the architecture, such as ``block_count``."""
        return self.metadata.get(f"{self.architecture}.{key}", default)

    def number(self, key: str, default: float | None = None) -> float:
        """Return a number of the architecture. Raises CheckpointError if the file has none above 0."""
        value = self.get(key, default)
        if not isinstance(value, int | float) or not 0 < value < math.inf:
            raise CheckpointError(f"{self.path} has no number {self.architecture}.{key} above 0")
        return value

    def count(self, key: str, default: int | None = None) -> int:
        """Return a number of the architecture, as a whole one; see ``number``."""
        return int(self.number(key, default))


def read_header(path: Path) -> GgufHeader:
    """Read the header of a GGUF file.

    Raises:
        CheckpointError: the file is missing, damaged, of an unknown version, or in several parts.
    """
    try:
        with open_regular(path) as file:
            return _read(path, file)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, struct.error) as error:
        raise CheckpointError(f"{path} is no GGUF file, or a damaged one: {error}") from error


def _read(path: Path, file: IO[bytes]) -> GgufHeader:
    if _take(file, 4) != _MAGIC:
        raise ValueError("it does not start with GGUF")
    version, tensors, keys = struct.unpack("<IQQ", _take(file, 20))
    if version not in _VERSIONS:
        raise ValueError(f"version {version}; versions 2 and 3 (little endian) are read")
    metadata = {}
    for _ in range(_bounded(keys, _MAX_KEYS, "keys")):
        key = _text(file)
        metadata[key] = _value(file, *struct.unpack("<I", _take(file, 4)))
    if (parts := metadata.get("split.count", 1)) not in (0, 1):
        raise CheckpointError(
            f"{path} is one of {parts} parts: join them with llama.cpp's gguf-split --merge"
        )
    entries = [_entry(file) for _ in range(_bounded(tensors, _MAX_TENSORS, "tensors"))]
    start, alignment = file.tell(), metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise ValueError(f"its alignment is {str(alignment)[:40]}")
    start += -start % alignment
    places = {name: StoredTensor(shape, kind, start + offset) for name, shape, kind, offset in entries}
    return GgufHeader(path, metadata, places)


def _entry(file: IO[bytes]) -> tuple[str, tuple[int, ...], int, int]:
    """Return name, shape, type and offset behind the header of a tensor."""
    name = _text(file)
    (count,) = struct.unpack("<I", _take(file, 4))
    shape = struct.unpack(f"<{_bounded(count, _MAX_DIMENSIONS, 'dimensions')}Q", _take(file, 8 * count))
    kind, offset = struct.unpack("<IQ", _take(file, 12))
    return name, shape[::-1], kind, offset


def _value(file: IO[bytes], kind: int) -> Any:
    if kind in _SCALARS:
        code = f"<{_SCALARS[kind]}"
        return struct.unpack(code, _take(file, struct.calcsize(code)))[0]
    if kind == _STRING:
        return _text(file)
    if kind != _ARRAY:
        raise ValueError(f"a value of the unknown type {kind}")
    item, count = struct.unpack("<IQ", _take(file, 12))
    _bounded(count, _MAX_ITEMS, "items")
    if item == _STRING:
        for _ in range(count):
            _take(file, _bounded(struct.unpack("<Q", _take(file, 8))[0], _MAX_TEXT, "bytes"))
        return count
    if item not in _SCALARS:
        raise ValueError(f"an array of the unknown type {item}")
    code = f"<{count}{_SCALARS[item]}"
    content = _take(file, struct.calcsize(code))
    return list(struct.unpack(code, content)) if count <= _MAX_KEPT else count


def _text(file: IO[bytes]) -> str:
    (length,) = struct.unpack("<Q", _take(file, 8))
    return _take(file, _bounded(length, _MAX_TEXT, "bytes")).decode()


def _take(file: IO[bytes], count: int) -> bytes:
    if file.tell() + count > _MAX_HEADER:
        raise ValueError(f"its header is longer than {_MAX_HEADER >> 20} MiB")
    content = file.read(count)
    if len(content) < count:
        raise ValueError("it ends inside its header")
    return content


def _bounded(count: int, most: int, what: str) -> int:
    if count > most:
        raise ValueError(f"{count:,} {what} in its header")
    return count
