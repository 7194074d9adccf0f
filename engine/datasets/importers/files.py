"""Rows of one data file: parquet, JSONL (plain or gzip), JSON.

Whatever cannot be read is a row of its own with the error: a line, an element of a list, a parquet row, the
rest of a file that is cut off, or a whole file. Numbers of rows are the same at every reading, damage
included, so that an import resumes where it was.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, cast

from engine.datasets.importers.fields import Row
from engine.errors import DatasetError, PreflightError

SUFFIXES = (".parquet", ".jsonl", ".ndjson", ".jsonl.gz", ".json")
_MAX_JSON = 1 << 30
_BATCH_ROWS = 16
_SPACE = re.compile(r"\s*")


@dataclass(frozen=True, slots=True)
class FileRow:
    """A row as read from a file, or the reason why it could not be read."""

    row: Row
    error: str = ""
    line: int = 0
    """Line of the file, counted from 1; 0 where rows are not lines."""


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
            with path.open("rb") as lines:
                return sum(1 for line in lines if line.strip())
    except (DatasetError, OSError):
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
    """Yield as many rows as a row group has; those behind damage with the error."""
    done = 0
    try:
        for batch in file.iter_batches(batch_size=_BATCH_ROWS, row_groups=[index]):
            for position in range(batch.num_rows):
                yield _parquet_row(batch, position)
                done += 1
    except Exception as error:  # pyarrow raises many kinds
        for _ in range(size - done):
            yield FileRow({}, f"the row group {index} cannot be read to its end: {error}")


def _parquet_row(batch: Any, position: int) -> FileRow:
    try:
        return FileRow(batch.slice(position, 1).to_pylist()[0])
    except UnicodeDecodeError as error:
        return FileRow({}, f"not UTF-8: {error}")
    except Exception as error:  # pyarrow raises many kinds
        return FileRow({}, f"cannot be read: {type(error).__name__}: {str(error)[:200]}")


def _opened(path: Path) -> IO[bytes]:
    if path.name.endswith(".gz"):
        return cast(IO[bytes], gzip.open(path))
    return path.open("rb")


def _line_rows(path: Path, skip: int) -> Rows:
    lines = _lines(path)
    skipped = sum(1 for _ in islice(lines, skip))
    return map(_parsed, lines), skipped


def _lines(path: Path) -> Iterator[tuple[int, bytes, str]]:
    """Yield number, content and error of the lines that are not empty; the last tells of damage."""
    number = 0
    try:
        with _opened(path) as stream:
            for number, line in enumerate(stream, start=1):
                if line.strip():
                    yield number, line, ""
    except (OSError, EOFError, zlib.error) as error:
        yield number + 1, b"", f"{path.name} cannot be read to its end: {error}"


def _parsed(line: tuple[int, bytes, str]) -> FileRow:
    number, content, error = line
    if error:
        return FileRow({}, error, number)
    try:
        return _object(json.loads(content), number)
    except UnicodeDecodeError as problem:
        return FileRow({}, f"not UTF-8: {problem}", number)
    except (ValueError, RecursionError) as problem:
        return FileRow({}, f"not JSON: {problem}", number)


def _object(value: Any, line: int = 0) -> FileRow:
    return FileRow(value, line=line) if isinstance(value, dict) else FileRow({}, "not an object", line)


def _json_rows(path: Path, skip: int) -> Rows:
    if path.stat().st_size > _MAX_JSON:
        raise DatasetError(
            f"{path.name} is larger than {_MAX_JSON >> 30} GiB: turn it into JSONL, which is streamed"
        )
    content, text = path.read_bytes(), ""
    encoding = json.detect_encoding(content)
    try:
        # Bytes that are no UTF-8 cost the rows that use them, not the file.
        text = content.decode(
            encoding, "surrogateescape" if encoding.startswith("utf-8") else "surrogatepass"
        )
        return _skipped([_object(row) for row in _records(json.loads(text), path.name)], skip)
    except (ValueError, RecursionError) as error:
        problem = f"{path.name} is not JSON: {error}"
    if text.lstrip().startswith("["):
        return _skipped(list(_elements(text)), skip)
    first = next(_lines(path), (0, b"", ""))
    if not _parsed(first).error:
        return _line_rows(path, skip)
    raise DatasetError(problem)


def _elements(text: str) -> Iterator[FileRow]:
    """Yield the elements of a damaged list; after damage go on at the next line indented as the first."""
    decoder = json.JSONDecoder()
    position = _after_space(text, text.index("[") + 1)
    newline = text[text.rfind("\n", 0, position) : position]
    counted, line = 0, 1
    while text[position : position + 1] != "]":
        line += text.count("\n", counted, position)
        counted = position
        try:
            value, position = decoder.raw_decode(text, position)
            yield _object(value, line)
            separator = _after_space(text, position)
            if text[separator : separator + 1] not in (",", "]"):
                raise json.JSONDecodeError("Expecting ',' or ']'", text, separator)
            position = _after_space(text, separator + (text[separator] == ","))
        except (ValueError, RecursionError) as error:
            yield FileRow({}, f"not JSON: {error}", line)
            following = text.find(f"{newline}{{", position) if newline.startswith("\n") else -1
            if following < 0:
                return
            position = following + len(newline)


def _after_space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match is not None else position


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
    raise DatasetError(f"{name} holds neither a list of rows nor columns")
