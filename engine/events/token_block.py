"""Token blocks: the tokens of a trajectory as one compressed columnar block, on the wire and in the database.

    magic "TYTB" │ version 1 │ number of tokens u32
    five columns, in the order of ``TOKEN_COLUMNS``: encoding u8 │ streams, each: size u32, zlib data

All numbers are little-endian. The encodings are lossless:

* ``RUNS``: run lengths as u32, then the value of each run: masks, versions, step indices;
* ``HALVES``: copies, then the lower, then the upper 16 bits of all values that are not copied: token ids,
  whose upper bits hardly vary. A copy is the position, source and length (u32 each) of ids that repeat
  earlier ones: where a conversation was rendered anew, a sample shares its beginning with the previous one;
* ``BYTES``: the first, second, … byte of each value: log-probabilities, whose mantissas are random;
* ``SAMPLED``: ``BYTES`` of the sampled tokens only, where all others are 0.0.

A block of unknown origin is safe to read: its decompressed size is bounded by its number of tokens, which is
bounded by ``MAX_TOKENS``. In JSON a block is base64 text. Events of earlier versions and of other
trainers may hold the columns as lists instead.
"""

from __future__ import annotations

import base64
import binascii
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import PlainSerializer, PlainValidator, WithJsonSchema

from engine.tokens import TOKEN_COLUMNS, TokenRecord

MAGIC = b"TYTB"
VERSION = 1
MAX_TOKENS = 1 << 24
"""Maximum number of tokens of a trajectory, over all its samples."""
_MAX_COPIES = 1 << 16
_LEVEL = 6
_HEADER = struct.Struct("<4sBI")
_SIZE = struct.Struct("<I")


class _Encoding(IntEnum):
    RUNS = 0
    HALVES = 1
    BYTES = 2
    SAMPLED = 3


@dataclass(frozen=True, slots=True)
class TokenBlock:
    """The compressed tokens of a trajectory, known to be readable and to have finite log-probabilities."""

    data: bytes
    length: int
    """Number of tokens."""
    samples: int
    """Number of training samples: more than 1 where the conversation was rendered anew."""

    @classmethod
    def of(cls, record: TokenRecord) -> TokenBlock:
        """Compress a record.

        Raises:
            ValueError: a log-probability is not finite, or ``encode`` refuses the record.
        """
        return cls._checked(encode(record), record)

    @classmethod
    def read(cls, data: bytes) -> TokenBlock:
        """Check a block of unknown origin.

        Raises:
            ValueError: a log-probability is not finite, or ``decode`` refuses the data.
        """
        return cls._checked(data, decode(data))

    @classmethod
    def _checked(cls, data: bytes, record: TokenRecord) -> TokenBlock:
        _check_finite(record.logprobs)
        # A record of other trainers may have no prompt, and so no start, but is one sample.
        return cls(data, len(record), min(len(record), max(1, len(record.starts))))


def encode(record: TokenRecord) -> bytes:
    """Return the token block of a record.

    Raises:
        ValueError: there are more than ``MAX_TOKENS`` tokens.
    """
    _check_length(len(record))
    parts = [_HEADER.pack(MAGIC, VERSION, len(record))]
    for name in TOKEN_COLUMNS:
        encoding, streams = _encoded(name, record)
        parts.append(bytes([encoding]))
        parts += map(packed, streams)
    return b"".join(parts)


def packed(stream: bytes) -> bytes:
    """Return a stream as ``BlockReader.stream`` reads it."""
    compressed = zlib.compress(stream, _LEVEL)
    return _SIZE.pack(len(compressed)) + compressed


def decode(data: bytes) -> TokenRecord:
    """Return the record of a token block.

    Raises:
        ValueError: the data is damaged, cut, too large or not a token block.
    """
    reader = BlockReader(data)
    magic, version, length = _HEADER.unpack(reader.take(_HEADER.size))
    if (magic, version) != (MAGIC, VERSION):
        raise ValueError(
            f"not a token block: it starts with {magic!r}, version {version}; expected {MAGIC!r}, {VERSION}"
        )
    _check_length(length)
    columns: dict[str, NDArray[Any]] = {}
    for name, dtype in TOKEN_COLUMNS.items():
        columns[name] = _decoded(reader, name, np.dtype(dtype), length, columns)
        columns[name].flags.writeable = False
    reader.close()
    return TokenRecord(**columns)


def _check_length(length: int) -> None:
    if length > MAX_TOKENS:
        raise ValueError(f"a token block of {length} tokens; expected at most {MAX_TOKENS}")


def _check_finite(logprobs: NDArray[np.float32]) -> None:
    wrong = np.flatnonzero(~np.isfinite(logprobs))
    if wrong.size:
        value = logprobs[wrong[0]]
        raise ValueError(f"the log-probability of token {wrong[0]} is {value}; expected a finite number")


def _encoded(name: str, record: TokenRecord) -> tuple[_Encoding, list[bytes]]:
    """Return the encoding and the streams of a column."""
    column = getattr(record, name)
    if name == "ids":
        copies = _copies(record)
        fresh = column[~_copied(copies, len(column))]
        return _Encoding.HALVES, [copies.astype("<u4").tobytes(), *planes(fresh, 2)]
    if name != "logprobs":
        starts = np.flatnonzero(np.append(True, column[1:] != column[:-1])[: len(column)])
        counts = np.diff(np.append(starts, len(column))).astype("<u4")
        return _Encoding.RUNS, [counts.tobytes(), _little(column[starts]).tobytes()]
    if column[~record.mask].tobytes().strip(b"\0"):
        return _Encoding.BYTES, planes(column, 1)
    return _Encoding.SAMPLED, planes(column[record.mask], 1)


def _copies(record: TokenRecord) -> NDArray[np.int64]:
    """Return position, source and length [K, 3] of the prefixes that samples share with the previous one."""
    bounds = [*record.starts.tolist()[:_MAX_COPIES], len(record)]
    copies = []
    for source, start, end in zip(bounds[:-2], bounds[1:-1], bounds[2:], strict=True):
        length = min(start - source, end - start)
        differing = np.flatnonzero(record.ids[source : source + length] != record.ids[start : start + length])
        common = int(differing[0]) if differing.size else length
        if common:
            copies.append((start, source, common))
    return np.array(copies, np.int64).reshape(-1, 3)


def _copied(copies: NDArray[np.int64], length: int) -> NDArray[np.bool_]:
    """Return a mask of the copied ids."""
    mask = np.zeros(length, np.bool_)
    for start, _, count in copies.tolist():
        mask[start : start + count] = True
    return mask


def _decoded(
    reader: BlockReader, name: str, dtype: np.dtype[Any], length: int, columns: Mapping[str, NDArray[Any]]
) -> NDArray[Any]:
    """Return the next column."""
    encoding = reader.take(1)[0]
    if encoding == _Encoding.RUNS:
        return _from_runs(reader, name, dtype, length)
    if encoding == _Encoding.HALVES and dtype == np.int32:
        return _from_halves(reader, dtype, length)
    if encoding == _Encoding.BYTES and dtype != np.bool_:
        return from_planes(reader, dtype, length, 1)
    if encoding == _Encoding.SAMPLED and dtype == np.float32:
        column = np.zeros(length, dtype)
        column[columns["mask"]] = from_planes(reader, dtype, int(np.count_nonzero(columns["mask"])), 1)
        return column
    raise ValueError(f"the token column {name} has encoding {encoding}, which is unknown for {dtype}")


def _from_runs(reader: BlockReader, name: str, dtype: np.dtype[Any], length: int) -> NDArray[Any]:
    counts = _numbers(reader.stream(4 * length), 1)[:, 0]
    if counts.sum() != length:
        raise ValueError(f"the runs of the token column {name} do not add up to {length} tokens")
    values = np.frombuffer(reader.exactly(len(counts) * dtype.itemsize), _stored(dtype))
    if dtype == np.bool_ and np.any(values > 1):
        raise ValueError(f"the token column {name} holds {values.max()}; expected 0 and 1")
    return np.repeat(values.astype(dtype), counts)


def _from_halves(reader: BlockReader, dtype: np.dtype[Any], length: int) -> NDArray[Any]:
    copies = _numbers(reader.stream(12 * _MAX_COPIES), 3)
    starts, sources, counts = copies.T
    ends = starts + counts
    if np.any(sources + counts > starts) or np.any(ends[:-1] > starts[1:]) or np.any(ends > length):
        raise ValueError("copies of the token block overlap or exceed it")
    copied = _copied(copies, length)
    column = np.empty(length, dtype)
    column[~copied] = from_planes(reader, dtype, length - int(np.count_nonzero(copied)), 2)
    for start, source, count in copies.tolist():
        column[start : start + count] = column[source : source + count]
    return column


def _numbers(data: bytes, width: int) -> NDArray[np.int64]:
    """Return rows of ``width`` u32 numbers."""
    if len(data) % (4 * width):
        raise ValueError(f"a stream of {len(data)} bytes in the token block; expected rows of {4 * width}")
    return np.frombuffer(data, "<u4").astype(np.int64).reshape(-1, width)


def planes(column: NDArray[Any], width: int) -> list[bytes]:
    """Return the first ``width`` bytes of all values, then the next ``width`` bytes, …"""
    pieces = _little(column).view(np.uint8).reshape(len(column), column.itemsize // width, width)
    return [pieces[:, plane].tobytes() for plane in range(pieces.shape[1])]


def from_planes(reader: BlockReader, dtype: np.dtype[Any], length: int, width: int) -> NDArray[Any]:
    """Return the values that ``planes`` cut."""
    pieces = np.empty((length, dtype.itemsize // width, width), np.uint8)
    for plane in range(pieces.shape[1]):
        pieces[:, plane] = np.frombuffer(reader.exactly(length * width), np.uint8).reshape(length, width)
    return pieces.reshape(-1).view(_stored(dtype)).astype(dtype)


def _little(column: NDArray[Any]) -> NDArray[Any]:
    return column.astype(_stored(column.dtype))


def _stored(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(np.uint8) if dtype == np.bool_ else dtype.newbyteorder("<")


class BlockReader:
    """Reader of an untrusted block, from its start to its end; its methods raise ValueError."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        """Return the next ``size`` bytes."""
        piece = self._data[self._at : self._at + size]
        if len(piece) < size:
            raise ValueError(f"the token block ends at byte {len(self._data)}, within a column")
        self._at += size
        return piece

    def stream(self, most: int) -> bytes:
        """Return the next stream, decompressed, of at most ``most`` bytes."""
        packed = self.take(_SIZE.unpack(self.take(_SIZE.size))[0])
        stream = zlib.decompressobj()
        try:
            # One byte more, because 0 means unlimited, and to detect a stream that is too long.
            data = stream.decompress(packed, most + 1)
        except zlib.error as error:
            raise ValueError(f"the token block is damaged: {error}") from error
        if not stream.eof or stream.unused_data or len(data) > most:
            raise ValueError(f"a stream of the token block is cut or longer than {most} bytes")
        return data

    def exactly(self, size: int) -> bytes:
        """Return the next stream, of ``size`` bytes decompressed."""
        data = self.stream(size)
        if len(data) != size:
            raise ValueError(f"a stream of the token block holds {len(data)} bytes; expected {size}")
        return data

    def close(self) -> None:
        """Raise ValueError unless the block ends here."""
        if self._at != len(self._data):
            raise ValueError(f"{len(self._data) - self._at} bytes follow the token block")


def _parse(value: object) -> TokenBlock:
    if isinstance(value, TokenBlock):
        return value
    if isinstance(value, str):
        try:
            return TokenBlock.read(base64.b64decode(value, validate=True))
        except binascii.Error as error:
            raise ValueError(f"the token block is not base64: {error}") from error
    if isinstance(value, Mapping) and set(value) == set(TOKEN_COLUMNS) and None not in value.values():
        return TokenBlock.of(TokenRecord(**value))
    raise ValueError(f"tokens are a {type(value).__name__}; expected a token block or its five columns")


def _text(block: TokenBlock) -> str:
    return base64.b64encode(block.data).decode()


TokenField = Annotated[
    TokenBlock,
    PlainValidator(_parse),
    PlainSerializer(_text, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "contentEncoding": "base64"}),
]
"""Type of an event's field: a token block, in JSON as base64, read from lists too."""
