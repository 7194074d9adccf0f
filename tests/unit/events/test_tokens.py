"""Token records: immutable arrays of equal length and fixed types."""

from __future__ import annotations

import pickle
from array import array
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engine.tokens import TOKEN_COLUMNS, TokenRecord

RECORD = TokenRecord(
    ids=(7, 8, 3), mask=(0, 1, 1), logprobs=(0.0, -0.1, -2.5), versions=(-1, 4, 5), steps=(-1, 0, 1)
)


def test_columns_have_fixed_types_for_any_input() -> None:
    arrays = TokenRecord(
        ids=np.array([7, 8, 3], np.int64),
        mask=array("B", [0, 1, 1]),
        logprobs=array("f", [0.0, -0.1, -2.5]),
        versions=[-1, 4, 5],
        steps=range(-1, 2),
    )
    assert arrays == RECORD
    assert {name: getattr(arrays, name).dtype for name in TOKEN_COLUMNS} == TOKEN_COLUMNS
    assert arrays.logprobs[1] == np.float32(-0.1)
    assert (len(arrays), arrays.num_sampled) == (3, 2)


def test_omitted_columns_are_derived_from_the_mask() -> None:
    record = TokenRecord(ids=(7, 8, 3), mask=(0, 1, 1))
    expected = [[0.0, 0.0, 0.0], [-1, 0, 0], [-1, 0, 0]]
    assert [column.tolist() for column in (record.logprobs, record.versions, record.steps)] == expected
    assert TokenRecord(ids=[5]).mask.tolist() == [False]
    assert len(TokenRecord()) == 0


def test_records_are_immutable() -> None:
    source = np.array([1, 2], np.int32)
    record = TokenRecord(ids=source)
    source[0] = 9
    assert record.ids.tolist() == [1, 2]
    for copy in (record, pickle.loads(pickle.dumps(record)), replace(record, mask=np.array([True, True]))):
        for name in TOKEN_COLUMNS:
            with pytest.raises(ValueError, match="read-only"):
                getattr(copy, name)[0] = 0


def test_equality_of_records_is_bit_exact() -> None:
    assert pickle.loads(pickle.dumps(RECORD)) == RECORD == replace(RECORD)
    nan = TokenRecord(ids=[1], logprobs=[float("nan")])
    assert nan == replace(nan)
    assert replace(RECORD, logprobs=np.nextafter(RECORD.logprobs, np.float32(1))) != RECORD
    assert TokenRecord() != RECORD
    assert RECORD != "a record"


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"mask": [0, 1]}, r"differ in length \(ids 3, mask 2, logprobs 3, versions 3, steps 3\)"),
        ({"ids": [1, 2]}, "differ in length"),
        ({"ids": [1, 2, 2**31]}, "ids holds 1 to 2147483648; expected -2147483648 to 2147483647"),
        ({"ids": [1, 2, 2**70]}, "ids holds object; expected int32"),
        ({"ids": [1.0, 2.0, 3.0]}, "ids holds float64; expected int32"),
        ({"ids": [[1, 2, 3]]}, "ids has 2 dimensions; expected 1"),
        ({"mask": [0, 1, 2]}, "mask holds 0 to 2; expected 0 to 1"),
        ({"logprobs": ["0", "1", "2"]}, "logprobs holds <U1; expected float32"),
        ({"logprobs": [0.0, 0.0, -1e39]}, r"logprobs holds -1e\+39; expected float32 values"),
    ],
)
def test_invalid_columns_are_refused(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(RECORD, **columns)
