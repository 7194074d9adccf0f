"""Limits on reading untrusted files: no FIFO, no endless line, no expansion, no deep nesting."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from engine import reading
from engine.reading import MAX_VALUES, parse_bounded, read_bounded, read_bounded_lines, read_json


def test_only_regular_files_within_the_limit_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", Path("/dev/zero"), tmp_path):
        with pytest.raises(OSError, match="not a regular file"):
            read_json(path)
        with pytest.raises(OSError, match="not a regular file"):
            next(read_bounded_lines(path))
    (tmp_path / "large").write_bytes(b"1" * 101)
    with pytest.raises(OSError, match="larger than"):
        read_bounded(tmp_path / "large", 100)
    assert read_bounded(tmp_path / "large", 101) == b"1" * 101


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"[" * 100_000, "nested more than 100 levels deep"),
        (b'{"a":' * 100_000, "nested more than 100 levels deep"),
        (b"[" * 101 + b"]" * 101, "nested more than 100 levels deep"),
        (b"[" + b"[]," * MAX_VALUES + b"[]]", "values"),
        (b"[" + b'"a",' * MAX_VALUES + b'"\\""]', "values"),
        (b"[" + b'"\\",\\"",' * MAX_VALUES + b"1]", "values"),
    ],
    ids=["lists", "objects", "levels", "empty", "strings", "escapes"],
)
def test_parse_bounded_rejects_values_much_larger_than_their_text(text: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_bounded(text)


def test_parse_bounded_counts_a_string_with_punctuation_as_one_value() -> None:
    value = {"patch": '[{,"\\' * MAX_VALUES}
    assert parse_bounded(json.dumps(value).encode()) == value


def test_overlong_lines_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_LINE", 100)
    monkeypatch.setattr(reading, "_CHUNK", 16)
    text = b"\n".join([b"first", b" ", b"x" * 100_000, b"y" * 99, b"z" * 101])
    (tmp_path / "plain").write_bytes(text)
    (tmp_path / "packed").write_bytes(gzip.compress(text))
    for name in ("plain", "packed"):
        lines = [
            (number, content[:5], error[:6]) for number, content, error in read_bounded_lines(tmp_path / name)
        ]
        assert lines == [(1, b"first", ""), (3, b"", "longer"), (4, b"yyyyy", ""), (5, b"", "longer")]


@pytest.mark.parametrize("line", [b"x" * 1_000_000, b"x\n" * 500_000], ids=["one line", "many lines"])
def test_reading_stops_when_a_file_expands_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: bytes
) -> None:
    monkeypatch.setattr(reading, "MAX_LINE", 10_000)
    monkeypatch.setattr(reading, "_FREE_EXPANSION", 20_000)
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"first\n" + line))
    lines = read_bounded_lines(tmp_path / "a.gz")
    assert next(lines)[1] == b"first\n"
    with pytest.raises(OSError, match="expands to more than 200 times its size"):
        list(lines)
