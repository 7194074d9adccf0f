"""Token traces: the inputs of the losses of a trajectory's sampled tokens as one compressed block.

    magic "TYTT" │ version 1 │ number of sampled tokens u32
    four columns, in the order of ``TRACE_COLUMNS``: present u8 │ 4 streams: size u32, zlib data
    texts: size u32, zlib data: JSON, token id → text, at most one text per token

A column is float32, stored as the first, second, … byte of each value (``engine.events.token_block``). A
block of unknown origin is safe to read: its decompressed size is bounded.
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import PlainSerializer, PlainValidator, WithJsonSchema

from engine.events.token_block import BlockReader, from_planes, packed, planes
from engine.reading import check_values, parse_bounded

MAGIC = b"TYTT"
VERSION = 1
TRACE_COLUMNS = ("logprobs", "entropies", "old_logprobs", "reference_logprobs")
_OPTIONAL = frozenset({"old_logprobs", "reference_logprobs"})
MAX_TRACED = 1 << 18
"""Maximum number of sampled tokens of a trace."""
MAX_TEXT_CHARS = 64
"""Part of a token's text that is kept."""
_TEXT_BYTES, _MAX_TEXTS_BYTES = 200, 2 << 20
"""Maximum size of the texts: for each token, and of all; texts beyond it are left out."""
_HEADER = struct.Struct("<4sBI")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TraceRecord:
    """Columns of a trajectory's N sampled tokens, in the order of its token record; float32 [N]."""

    logprobs: NDArray[np.float32]
    """log π under the weights that the optimizer step changed."""
    entropies: NDArray[np.float32]
    """Nats."""
    old_logprobs: NDArray[np.float32] | None = None
    """log π_old; None where it is the sampler's log-probability."""
    reference_logprobs: NDArray[np.float32] | None = None
    """log π_ref; None without a KL term in the loss."""
    texts: Mapping[int, str] = field(default_factory=dict)
    """Token id → text."""

    @property
    def is_finite(self) -> bool:
        """Return whether all values are finite."""
        columns = (self.logprobs, self.entropies, self.old_logprobs, self.reference_logprobs)
        return all(np.isfinite(column).all() for column in columns if column is not None)

    def __len__(self) -> int:
        return len(self.logprobs)


@dataclass(frozen=True, slots=True)
class TraceBlock:
    """A compressed trace that is known to be readable."""

    data: bytes
    length: int
    """Number of sampled tokens."""

    @classmethod
    def of(cls, record: TraceRecord) -> TraceBlock:
        """Compress a record. Raises ValueError where ``decode_trace`` would."""
        return cls.read(encode_trace(record))

    @classmethod
    def read(cls, data: bytes) -> TraceBlock:
        """Check a block of unknown origin. Raises ValueError where ``decode_trace`` does."""
        return cls(data, len(decode_trace(data)))


def encode_trace(record: TraceRecord) -> bytes:
    """Return the block of a record, which has at most ``MAX_TRACED`` tokens."""
    parts = [_HEADER.pack(MAGIC, VERSION, len(record))]
    for name in TRACE_COLUMNS:
        column: NDArray[np.float32] | None = getattr(record, name)
        parts.append(bytes([column is not None]))
        if column is not None:
            parts += [packed(plane) for plane in planes(column, 1)]
    parts.append(packed(_packed_texts(record)))
    return b"".join(parts)


def _packed_texts(record: TraceRecord) -> bytes:
    size, entries = 2, []
    for token, text in record.texts.items():
        entry = f'"{token}":{json.dumps(text[:MAX_TEXT_CHARS], ensure_ascii=False)}'.encode(errors="replace")
        size += len(entry) + 1
        if size > _most_bytes(len(record)):
            break
        entries.append(entry)
    return b"{" + b",".join(entries) + b"}"


def _most_bytes(length: int) -> int:
    return min(2 + _TEXT_BYTES * length, _MAX_TEXTS_BYTES)


def decode_trace(data: bytes) -> TraceRecord:
    """Return the record of a block.

    Raises:
        ValueError: the data is damaged, cut, too large or not a trace, or has a value that is not finite.
    """
    reader = BlockReader(data)
    magic, version, length = _HEADER.unpack(reader.take(_HEADER.size))
    if (magic, version) != (MAGIC, VERSION):
        raise ValueError(f"not a token trace: it starts with {magic!r}, version {version}")
    if length > MAX_TRACED:
        raise ValueError(f"a token trace of {length} tokens; expected at most {MAX_TRACED}")
    columns: dict[str, NDArray[Any]] = {}
    for name in TRACE_COLUMNS:
        if reader.take(1) == b"\0":
            if name not in _OPTIONAL:
                raise ValueError(f"a token trace without {name}")
            continue
        column = from_planes(reader, np.dtype(np.float32), length, 1)
        if not np.isfinite(column).all():
            raise ValueError(f"the column {name} of a token trace has a value that is not finite")
        columns[name] = column
    texts = _texts(reader.stream(_most_bytes(length)), length)
    reader.close()
    return TraceRecord(texts=texts, **columns)


def _texts(data: bytes, length: int) -> dict[int, str]:
    try:
        check_values(data, length + 1)  # and the object itself
        return {int(token): _whole(text) for token, text in parse_bounded(data).items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise ValueError(f"the texts of a token trace cannot be read: {error}") from None


def _whole(text: str) -> str:
    """Return the part that is kept, without halves of surrogate pairs. Raises TypeError, AttributeError."""
    return text[:MAX_TEXT_CHARS].encode(errors="replace").decode()


def _parse(value: object) -> TraceBlock:
    if isinstance(value, TraceBlock):
        return value
    if not isinstance(value, str):
        raise ValueError(f"a token trace is a {type(value).__name__}; expected base64")
    try:
        return TraceBlock.read(base64.b64decode(value, validate=True))
    except binascii.Error as error:
        raise ValueError(f"the token trace is not base64: {error}") from error


def _text(block: TraceBlock) -> str:
    return base64.b64encode(block.data).decode()


TraceField = Annotated[
    TraceBlock,
    PlainValidator(_parse),
    PlainSerializer(_text, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "contentEncoding": "base64"}),
]
"""Type of an event's field: a token trace, in JSON as base64."""
