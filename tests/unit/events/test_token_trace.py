"""Token traces: exact round trips, and refusal of malformed data."""

from __future__ import annotations

import base64
import contextlib
import json
import random
import struct
import zlib

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from engine.events.redaction import redact_line
from engine.events.token_block import packed
from engine.events.token_trace import (
    MAGIC,
    MAX_TEXT_CHARS,
    MAX_TRACED,
    TRACE_COLUMNS,
    TraceBlock,
    TraceField,
    TraceRecord,
    decode_trace,
    encode_trace,
)
from engine.redaction import Redactor

FIELD: TypeAdapter[TraceBlock] = TypeAdapter(TraceField)
RECORD = TraceRecord(
    logprobs=np.array([-0.1, -17.25, -1e-9], np.float32),
    entropies=np.array([0.5, 0.0, 3.25], np.float32),
    reference_logprobs=np.array([-0.2, -16.0, 0.0], np.float32),
    texts={7: "def", 9: "\n\t", 11: "x" * 1000},
)


def test_block_preserves_every_bit_and_bounds_texts() -> None:
    read = decode_trace(encode_trace(RECORD))
    for name in TRACE_COLUMNS:
        stored, expected = getattr(read, name), getattr(RECORD, name)
        assert (stored is None) == (expected is None)
        assert stored is None or stored.tobytes() == expected.tobytes()
    assert read.texts == {7: "def", 9: "\n\t", 11: "x" * MAX_TEXT_CHARS}


def test_corrupted_block_is_decoded_or_refused_with_a_value_error() -> None:
    generator = random.Random(1)
    data = encode_trace(RECORD)
    for _ in range(300):
        block = bytearray(data)
        for _ in range(generator.randint(1, 3)):
            block[generator.randrange(len(block))] = generator.randrange(256)
        with contextlib.suppress(ValueError):
            decode_trace(bytes(block[: generator.choice([len(block), generator.randrange(len(block))])]))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"TYTB" + b"\1" * 20, "not a token trace"),
        (struct.pack("<4sBI", MAGIC, 1, 2**31), "expected at most"),
        (struct.pack("<4sBI", MAGIC, 1, 0) + b"\0\0\0\0", "without logprobs"),
        (encode_trace(RECORD) + b"x", "1 bytes follow"),
        (
            encode_trace(
                TraceRecord(
                    logprobs=np.array([np.nan], np.float32), entropies=np.zeros(1, np.float32), texts={}
                )
            ),
            "not finite",
        ),
    ],
    ids=["magic", "length", "column", "rest", "nan"],
)
def test_unusable_data_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode_trace(data)
    with pytest.raises(ValidationError):
        FIELD.validate_python(base64.b64encode(data).decode())


def test_a_small_block_cannot_expand_to_gigabytes() -> None:
    bomb = zlib.compress(b"[" * (64 << 20))
    data = struct.pack("<4sBI", MAGIC, 1, 0) + b"\1" + struct.pack("<I", len(bomb)) + bomb
    with pytest.raises(ValueError, match="longer than 0 bytes"):
        decode_trace(data)


def with_texts(texts: bytes, length: int = 3) -> bytes:
    """Return the block of tokens of zeros with these texts."""
    zeros = np.zeros(length, np.float32)
    block = encode_trace(TraceRecord(logprobs=zeros, entropies=zeros, texts={}))
    return block.removesuffix(packed(b"{}")) + packed(texts)


@pytest.mark.parametrize(
    "texts",
    [
        b"[" + b"[]," * 150 + b"[]]",
        b'{"1":' + b"[" * 300 + b"]" * 300 + b"}",
        b"{" + b",".join(b'"%d":""' % token for token in range(50)) + b"}",
        b'{"1":"' + b"x" * 1000 + b'"}',
        b'{"1":5}',
        b'{"x":"y"}',
        b"[]",
        b"",
    ],
    ids=["lists", "nested", "number", "size", "value", "key", "list", "empty"],
)
def test_texts_are_bounded_by_the_tokens(texts: bytes) -> None:
    with pytest.raises(ValueError, match=r"texts of a token trace|longer than 602 bytes"):
        decode_trace(with_texts(texts))


def test_trace_is_bounded() -> None:
    with pytest.raises(ValueError, match="expected at most 262144"):
        decode_trace(with_texts(b"{}", length=MAX_TRACED + 1))


def test_halves_of_surrogate_pairs_are_replaced() -> None:
    assert decode_trace(with_texts(b'{"1":"a\\ud800","2":"\\ud83d\\ude00"}')).texts == {1: "a?", 2: "😀"}
    zeros = np.zeros(3, np.float32)
    record = TraceRecord(logprobs=zeros, entropies=zeros, texts={1: "\ud800"})
    assert decode_trace(encode_trace(record)).texts == {1: "?"}


def test_texts_beyond_the_limit_are_left_out() -> None:
    zeros = np.zeros(3, np.float32)
    texts = dict.fromkeys(range(3), "\x00" * MAX_TEXT_CHARS)
    record = TraceRecord(logprobs=zeros, entropies=zeros, texts=texts)
    assert decode_trace(encode_trace(record)).texts == {0: texts[0]}


def test_secrets_that_look_like_a_block_do_not_change_it() -> None:
    text = base64.b64encode(encode_trace(RECORD)).decode()
    line = json.dumps({"type": "trajectory_trained", "tokens": text}, separators=(",", ":")).encode()
    assert redact_line(line, Redactor([text[20:60]])) == line
