"""Token blocks: bit-exact round trips, sizes, and refusal of malformed data."""

from __future__ import annotations

import base64
import contextlib
import json
import struct
import tracemalloc
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from engine.events.token_block import MAX_TOKENS, TokenBlock, TokenField, decode, encode
from engine.tokens import TOKEN_COLUMNS, TokenRecord

FIELD: TypeAdapter[TokenBlock] = TypeAdapter(TokenField)
INTS = st.integers(-(2**31), 2**31 - 1)


@st.composite
def records(draw: st.DrawFn) -> TokenRecord:
    """Generate records with arbitrary bits, or like those of rollouts with zeros at unsampled tokens."""
    length = draw(st.integers(0, 40))
    some = st.integers(0, 2) if draw(st.booleans()) else INTS

    def column(values: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(values, min_size=length, max_size=length))

    mask = np.array(column(st.booleans()), np.bool_)
    bits = np.array(column(INTS), np.int32).view(np.float32)
    as_sampled = draw(st.booleans())
    return TokenRecord(
        ids=column(some),
        mask=mask,
        logprobs=np.where(mask, bits, np.float32(0)) if as_sampled else bits,
        versions=None if as_sampled else column(INTS),
        steps=None if as_sampled else column(st.integers(-1, 3)),
    )


@given(records())
def test_block_preserves_every_bit_of_a_record(record: TokenRecord) -> None:
    assert decode(encode(record)) == record


@given(records(), st.data())
def test_corrupted_block_is_decoded_or_refused_with_a_value_error(
    record: TokenRecord, data: st.DataObject
) -> None:
    block = bytearray(encode(record))
    for _ in range(data.draw(st.integers(1, 3))):
        block[data.draw(st.integers(0, len(block) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ValueError):
        decode(bytes(block))


def test_size_of_a_sampled_column_depends_only_on_sampled_tokens() -> None:
    rng = np.random.default_rng(0)
    mask = np.zeros(10_000, np.bool_)
    mask[5000:6000] = True
    noise = rng.standard_normal(10_000).astype(np.float32)
    where_sampled = np.where(mask, noise, np.float32(0))
    sampled = encode(TokenRecord(ids=np.zeros(10_000, int), mask=mask, logprobs=where_sampled))
    everywhere = encode(TokenRecord(ids=np.zeros(10_000, int), mask=mask, logprobs=noise))
    assert len(sampled) < 4500
    assert len(everywhere) > 30_000


def stream(data: bytes) -> bytes:
    packed = zlib.compress(data)
    return struct.pack("<I", len(packed)) + packed


def block(length: int, *columns: bytes) -> bytes:
    return struct.pack("<4sBI", b"TYTB", 1, length) + b"".join(columns)


def runs(length: int, value: bytes) -> bytes:
    return b"\0" + stream(struct.pack("<I", length)) + stream(value)


NONE = stream(b"")
IDS = b"\1" + NONE + stream(bytes(4)) + stream(bytes(4))
REST = (runs(2, b"\0"), b"\3" + NONE * 4, runs(2, bytes(4)), runs(2, bytes(4)))


def copying(*copies: int) -> bytes:
    return b"\1" + stream(struct.pack(f"<{len(copies)}I", *copies)) + stream(bytes(2)) + stream(bytes(2))


def test_blocks_built_by_hand_are_decoded() -> None:
    record = TokenRecord(ids=[0, 0], versions=[0, 0], steps=[0, 0])
    assert decode(block(2, IDS, *REST)) == record
    assert decode(block(2, copying(1, 0, 1), *REST)) == record


def test_repeated_prompts_of_a_conversation_are_stored_once() -> None:
    rng = np.random.default_rng(0)
    turns = [rng.integers(0, 150_000, 200) for _ in range(20)]
    prompts = [np.concatenate(turns[: n + 1]) for n in range(20)]
    steps = np.concatenate([np.append(np.full(len(prompt), -1), 0) for prompt in prompts])
    record = TokenRecord(ids=np.concatenate([np.append(prompt, 7) for prompt in prompts]), steps=steps)
    assert len(record.starts) == 20
    data = encode(record)
    assert decode(data) == record
    assert len(data) < 4 * 20 * 200 < len(record)


CONTRADICTIONS = {
    "runs too long": (block(2, IDS, runs(3, b"\0"), *REST[1:]), "column mask do not add up to 2 tokens"),
    "runs cut": (block(2, IDS, b"\0" + stream(b"123") + stream(b"\0"), *REST[1:]), "stream of 3 bytes"),
    "mask of 2": (block(2, IDS, runs(2, b"\2"), *REST[1:]), "the token column mask holds 2"),
    "unknown encoding": (block(2, b"\7" + IDS[1:], *REST), "ids has encoding 7"),
    "sampled ids": (block(2, b"\3" + NONE * 4, *REST), "ids has encoding 3"),
    "mask in bytes": (block(2, IDS, b"\2" + stream(bytes(2)), *REST[1:]), "mask has encoding 2"),
    "too few values": (block(3, IDS, *REST), "holds 4 bytes; expected 6"),
    "half a copy": (block(2, copying(1, 0), *REST), "stream of 8 bytes"),
    "copy outside": (block(2, copying(1, 0, 2), *REST), "copies of the token block overlap"),
    "copy of itself": (block(2, copying(1, 1, 1), *REST), "copies of the token block overlap"),
    "copy beyond the end": (block(2, copying(5, 0, 1), *REST), "copies of the token block overlap"),
    "copies that overlap": (block(4, copying(2, 0, 2, 3, 0, 1), *REST), "copies of the token block overlap"),
    "too many values": (block(1, IDS, *REST), "cut or longer than 2 bytes"),
    "no zlib": (block(2, b"\1" + NONE + struct.pack("<I", 4) + b"junk", *REST), "damaged"),
    "beyond the end": (block(2, b"\1" + NONE + struct.pack("<I", 1 << 31), *REST), "ends at byte"),
    "too many tokens": (block(MAX_TOKENS + 1, IDS, *REST), "16777217 tokens"),
}


@pytest.mark.parametrize(("data", "message"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_inconsistent_blocks_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode(data)


def test_decompression_bomb_is_refused_without_allocating_its_size() -> None:
    zeros = zlib.compress(bytes(1 << 28))
    bomb = block(2, b"\1" + struct.pack("<I", len(zeros)) + zeros)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="cut or longer than 786432 bytes"):
            decode(bomb)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_token_field_reads_blocks_and_lists_and_writes_blocks() -> None:
    record = TokenRecord(ids=[1, 2], mask=[0, 1], logprobs=[0.0, -0.25], versions=[-1, 3], steps=[-1, 0])
    lists = {name: getattr(record, name).tolist() for name in TOKEN_COLUMNS}
    of_lists = FIELD.validate_json(json.dumps(lists))
    assert of_lists == TokenBlock.of(record) == FIELD.validate_python(of_lists)
    written = FIELD.dump_json(of_lists)
    assert base64.b64decode(json.loads(written)) == of_lists.data
    assert FIELD.validate_json(written) == of_lists
    assert of_lists.length == 2


@pytest.mark.parametrize(
    ("steps", "samples"), [([], 0), ([-1, -1, 0], 1), ([-1, 0, -1, -1, 1], 2), ([0, 0], 1)]
)
def test_block_counts_its_samples(steps: list[int], samples: int) -> None:
    block = TokenBlock.of(TokenRecord(ids=range(len(steps)), steps=steps))
    assert block.samples == samples
    assert TokenBlock.read(block.data) == block


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_non_finite_values_are_kept_in_blocks_and_refused_in_events(value: float) -> None:
    record = TokenRecord(ids=[1, 2], mask=[0, 1], logprobs=[0.0, value])
    data = encode(record)
    assert decode(data) == record
    with pytest.raises(ValueError, match="log-probability of token 1 is"):
        TokenBlock.of(record)
    with pytest.raises(ValueError, match="log-probability of token 1 is"):
        TokenBlock.read(data)
