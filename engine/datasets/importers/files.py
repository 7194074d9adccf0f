"""Rows of one data file: parquet, JSONL (plain or gzip), JSON.

Lines and elements of lists are streamed, each of at most ``MAX_LINE`` bytes; other documents are read whole.
Unreadable parts are rows with an error: a line, an element of a list, a parquet row, the rest of a truncated
file, or a whole file. Row numbers are the same in every reading, even of damaged files, so that imports can
resume.
"""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from engine.datasets.importers.fields import Row
from engine.datasets.importers.json_list import read_elements
from engine.errors import DatasetError, PreflightError
from engine.reading import (
    MAX_LINE,
    LimitError,
    check_nesting,
    check_values,
    open_regular,
    parse_bounded,
    parse_json,
    read_bounded,
    read_bounded_lines,
)

SUFFIXES = (".parquet", ".jsonl", ".ndjson", ".jsonl.gz", ".json")
_MAX_JSON = 16 << 20
"""Maximum size of a document that is not a list, bytes."""
_MAX_VALUES = 1_000_000
"""Maximum number of values in a document that is not a list."""
_START = 4096
_BATCH_ROWS = 16
_MAX_GROUP = 1 << 20
"""Maximum number of rows reported for a damaged row group; the count in the file is not trusted."""


@dataclass(frozen=True, slots=True)
class FileRow:
    """A row as read from a file, or the reason why it could not be read."""

    row: Row
    error: str = ""
    line: int = 0
    """Line of the file, counted from 1; 0 if rows are not lines."""


Rows = tuple[Iterator[FileRow], int]
"""Rows of a file after the first ``skip``, and the number actually skipped."""


def suffix_of(path: Path) -> str:
    """Return the suffix by which a data file is read; empty for other files."""
    return next((suffix for suffix in SUFFIXES if path.name.endswith(suffix)), "")


def open_rows(path: Path, skip: int) -> Rows:
    """Return the rows of one file after the first ``skip``, and the number actually skipped.

    Raises PreflightError when reading parquet needs pyarrow, which is missing.
    """
    readers: dict[str, Callable[[Path, int], Rows]] = {".parquet": _parquet_rows, ".json": _json_rows}
    try:
        return readers.get(suffix_of(path), _line_rows)(path, skip)
    except (DatasetError, OSError) as error:
        return _skipped([FileRow({}, str(error))], skip)


def count_file_rows(path: Path) -> int | None:
    """Return the number of rows without converting them; None when counting would read a whole document."""
    try:
        if path.name.endswith(".parquet"):
            return int(_parquet(path).metadata.num_rows)
        if suffix_of(path) in (".jsonl", ".ndjson"):
            return sum(1 for _ in read_bounded_lines(path))
    except (DatasetError, OSError, EOFError, zlib.error):
        return 1
    return None


def _skipped(rows: list[FileRow], skip: int) -> Rows:
    number = min(skip, len(rows))
    return iter(rows[number:]), number


def _parquet(path: Path) -> Any:
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise PreflightError(
            "reading parquet needs pyarrow: pip install -r requirements/engine.txt"
        ) from error
    try:
        return parquet.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False)
    except Exception as error:  # pyarrow raises many kinds
        raise DatasetError(f"{path.name} is no parquet file: {error}") from error


def _parquet_rows(path: Path, skip: int) -> Rows:
    file = _parquet(path)
    sizes = [file.metadata.row_group(index).num_rows for index in range(file.metadata.num_row_groups)]
    skipped, first = 0, 0
    while first < len(sizes) and skipped + sizes[first] <= skip:
        skipped += sizes[first]
        first += 1
    inside = min(skip - skipped, sum(sizes[first:]))

    def rows() -> Iterator[FileRow]:
        for index in range(first, len(sizes)):
            yield from _group_rows(file, index, sizes[index])

    return islice(rows(), inside, None), skipped + inside


def _group_rows(file: Any, index: int, size: int) -> Iterator[FileRow]:
    """Yield all rows of a row group; those after damage have the error."""
    done = 0
    try:
        for batch in file.iter_batches(batch_size=_BATCH_ROWS, row_groups=[index], use_threads=False):
            for position in range(batch.num_rows):
                yield _parquet_row(batch, position)
                done += 1
    except Exception as error:  # pyarrow raises many kinds
        for _ in range(min(size, _MAX_GROUP) - done):
            yield FileRow({}, f"the row group {index} cannot be read to its end: {error}")


def _parquet_row(batch: Any, position: int) -> FileRow:
    try:
        row = batch.slice(position, 1)
        if row.nbytes > MAX_LINE:
            return FileRow({}, f"longer than {MAX_LINE >> 20} MiB")
        return FileRow(row.to_pylist()[0])
    except UnicodeDecodeError as error:
        return FileRow({}, f"not UTF-8: {error}")
    except Exception as error:  # pyarrow raises many kinds
        return FileRow({}, f"cannot be read: {type(error).__name__}: {str(error)[:200]}")


def _line_rows(path: Path, skip: int) -> Rows:
    lines = _lines(path)
    skipped = sum(1 for _ in islice(lines, skip))
    return map(_parsed, lines), skipped


def _lines(path: Path) -> Iterator[tuple[int, bytes, str]]:
    """Yield number, content and error of the non-empty lines; the last may report damage."""
    number = 0
    try:
        for number, content, error in read_bounded_lines(path):
            yield number, content, error
    except (OSError, EOFError, zlib.error) as error:
        yield number + 1, b"", f"{path.name} cannot be read to its end: {error}"


def _parsed(line: tuple[int, bytes, str]) -> FileRow:
    number, content, error = line
    if error:
        return FileRow({}, error, number)
    try:
        return _object(parse_bounded(content), number)
    except UnicodeDecodeError as problem:
        return FileRow({}, f"not UTF-8: {problem}", number)
    except LimitError as problem:
        return FileRow({}, str(problem), number)
    except ValueError as problem:
        return FileRow({}, f"not JSON: {problem}", number)
    except MemoryError:
        return FileRow({}, "too large", number)


def _object(value: Any, line: int = 0) -> FileRow:
    return FileRow(value, line=line) if isinstance(value, dict) else FileRow({}, "not an object", line)


def _json_rows(path: Path, skip: int) -> Rows:
    try:
        with _opened_text(path) as text:
            is_list = text.read(_START).lstrip().startswith("[")
        if is_list:
            elements = _elements(path)
            return elements, sum(1 for _ in islice(elements, skip))
        if path.stat().st_size <= _MAX_JSON:
            return _skipped([_object(row) for row in _records(_document(path), path.name)], skip)
        problem = f"{path.name} is larger than {_MAX_JSON >> 20} MiB: turn it into JSONL, which is streamed"
    except LimitError as error:
        problem = f"{path.name}: {error}: turn it into JSONL, which is streamed"
    except ValueError as error:
        problem = f"{path.name} is not JSON: {error}"
    except MemoryError:
        problem = f"{path.name} needs too much memory: turn it into JSONL, which is streamed"
    first = next(_lines(path), (0, b"", ""))
    if not _parsed(first).error:
        return _line_rows(path, skip)
    raise DatasetError(problem)


def _document(path: Path) -> Any:
    content = read_bounded(path, _MAX_JSON)
    check_values(content, _MAX_VALUES)
    value = parse_json(content.decode(*_decoding(content)))
    check_nesting(value)
    return value


def _decoding(start: bytes) -> tuple[str, str]:
    """Return encoding and error handler; bytes that are not UTF-8 only affect the rows they are in."""
    encoding = json.detect_encoding(start)
    return encoding, "surrogateescape" if encoding.startswith("utf-8") else "surrogatepass"


@contextmanager
def _opened_text(path: Path) -> Iterator[TextIO]:
    """Open a JSON document."""
    with open_regular(path) as file:
        encoding, errors = _decoding(file.read(4))
        file.seek(0)
        with io.TextIOWrapper(file, encoding=encoding, errors=errors, newline="") as text:
            yield text


def _elements(path: Path) -> Iterator[FileRow]:
    line = 0
    try:
        with _opened_text(path) as text:
            for line, value, problem in read_elements(text):
                yield FileRow({}, problem, line) if problem else _object(value, line)
    except (OSError, ValueError) as error:
        yield FileRow({}, f"{path.name} cannot be read to its end: {error}", line)


def _records(value: Any, name: str) -> list[Any]:
    """Return the rows of a document: a list, columns (lists or index → value), id → row, or a single row."""
    if isinstance(value, list):
        return value
    if isinstance(value, dict) and isinstance(value.get("rows"), list):
        return [item.get("row", item) if isinstance(item, dict) else item for item in value["rows"]]
    if isinstance(value, dict) and value:
        columns = list(value.values())
        if "instance_id" in value and isinstance(value["instance_id"], str):
            return [value]
        if all(isinstance(column, list) for column in columns):
            longest = max(map(len, columns))
            return [
                {key: column[index] for key, column in value.items() if index < len(column)}
                for index in range(longest)
            ]
        if "instance_id" in value and all(isinstance(column, dict) for column in columns):
            return [
                {key: column.get(index) for key, column in value.items()} for index in value["instance_id"]
            ]
        if sum(isinstance(column, dict) for column in columns) * 2 > len(columns):
            return columns
    raise DatasetError(f"{name} contains neither a list of rows nor columns")
