"""Rows of local files and folders, one at a time: parquet, JSONL (plain or gzip), JSON, folders of tasks.

A line that cannot be read is an item of its own with the error, so that it costs one row, not the import.
The order is stable (file names, then positions), which is what row numbers and resuming rest on.
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

from engine.datasets.importers.base import Format
from engine.datasets.importers.fields import Row
from engine.errors import DatasetError, PreflightError

SUFFIXES = (".parquet", ".jsonl", ".ndjson", ".jsonl.gz", ".json")
_MAX_JSON = 1 << 30
_BATCH_ROWS = 16
_SPLIT = re.compile(r"^(dev_[A-Za-z0-9]+|train|test|dev|validation)(?:-\d+-of-\d+|[-_.].*)?$")
_SCRIPTS = "run_scripts"
_DESCRIPTIONS = frozenset(
    {"dataset_infos.json", "dataset_info.json", "dataset.json", "state.json", "config.json"}
)


@dataclass(frozen=True, slots=True)
class Item:
    """One row as read from the source, or the reason why it could not be read."""

    number: int
    """Row number, counted from 0 over the whole source."""
    file: str
    """Path relative to the source."""
    row: Row
    split: str
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Location of the rows of an import."""

    path: Path
    """File or folder."""
    only: frozenset[str] = frozenset()
    """Files to read, relative to ``path``; empty reads all."""
    revision: str = ""
    """The hub's commit; empty for local sources."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of a source."""

    path: Path
    name: str
    split: str


def data_files(source: Source, split: str = "") -> list[DataFile]:
    """Return the files with rows, in a stable order.

    Args:
        source: the location of the rows.
        split: only files of this split.

    Raises:
        DatasetError: there are none; says what was looked for.
    """
    path = source.path
    if not path.exists():
        raise DatasetError(f"there is no file or folder {path}")
    root = path.parent if path.is_file() else path
    found = [path] if path.is_file() else sorted(path.rglob("*"))
    inside = [file for file in found if file.is_file() and not leads_out(file, root)]
    names = [file.relative_to(root) for file in inside if _is_data(file.relative_to(root))]
    files = [DataFile(root / name, name.as_posix(), split_of(name)) for name in names]
    files = [file for file in files if not source.only or file.name in source.only]
    chosen = [file for file in files if not split or file.split == split]
    if not chosen:
        known = ", ".join(sorted({file.split for file in files if file.split}))
        wanted = f" of the split '{split}' (there are: {known or 'none by name'})" if files else ""
        raise DatasetError(f"no data file{wanted} in {path}; rows come from {', '.join(SUFFIXES)}")
    return chosen


def leads_out(path: Path, root: Path) -> bool:
    """Return whether a file links to outside of the source, which could expose arbitrary local files."""
    return not path.resolve().is_relative_to(root.resolve())


def _suffix(path: Path) -> str:
    return next((suffix for suffix in SUFFIXES if path.name.endswith(suffix)), "")


def _is_data(path: Path) -> bool:
    """Return whether a file may hold rows; hidden files, dataset descriptions and scripts do not."""
    hidden = any(part.startswith(".") or part == _SCRIPTS for part in path.parts)
    return bool(_suffix(path)) and not hidden and path.name not in _DESCRIPTIONS


def split_of(path: Path) -> str:
    """Return the split that a path names (``data/train-00000-of-00002.parquet``: ``train``), if any."""
    for part in reversed(path.parts):
        name = part.removesuffix(_suffix(Path(part)))
        match = _SPLIT.match(name)
        if match:
            return match[1]
    return ""


def read_items(source: Source, form: Format, *, split: str = "", start: int = 0) -> Iterator[Item]:
    """Yield the rows of a source from number ``start`` on; earlier rows are skipped cheaply.

    Raises:
        DatasetError: the source has no rows of this format.
        PreflightError: reading parquet needs pyarrow, which is missing.
    """
    if form.read_folder is not None:
        yield from _folders(source.path, form, start)
        return
    number = 0
    beside = (source.path if source.path.is_dir() else source.path.parent) / _SCRIPTS
    scripts = beside if beside.is_dir() else None
    for file in data_files(source, split):
        rows, count = open_rows(file.path, max(0, start - number))
        number += count
        for row, error in rows:
            if scripts is not None:
                row = {**row, **_scripts(scripts, row)}
            yield Item(number, file.name, row, file.split, error)
            number += 1


def count_rows(source: Source, form: Format, *, split: str = "") -> int:
    """Return the number of rows without converting them; 0 when counting would read the whole source."""
    if form.read_folder is not None:
        return len(task_folders(source.path, form.marker))
    total = 0
    for file in data_files(source, split):
        if file.path.name.endswith(".parquet"):
            total += _parquet(file.path).metadata.num_rows
        elif _suffix(file.path) in (".jsonl", ".ndjson"):
            with file.path.open("rb") as lines:
                total += sum(1 for line in lines if line.strip())
        else:
            return 0
    return total


def open_rows(path: Path, skip: int) -> tuple[Iterator[tuple[Row, str]], int]:
    """Return the rows of one file after the first ``skip``, and the number actually skipped."""
    readers: dict[str, Callable[[Path, int], tuple[Iterator[tuple[Row, str]], int]]] = {
        ".parquet": _parquet_rows,
        ".json": _json_rows,
    }
    return readers.get(_suffix(path), _line_rows)(path, skip)


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


def _parquet_rows(path: Path, skip: int) -> tuple[Iterator[tuple[Row, str]], int]:
    file = _parquet(path)
    skipped = 0
    groups: list[int] = []
    for index in range(file.metadata.num_row_groups):
        size = file.metadata.row_group(index).num_rows
        if not groups and skipped + size <= skip:
            skipped += size
        else:
            groups.append(index)
    inside = min(skip - skipped, file.metadata.num_rows - skipped)

    def rows() -> Iterator[tuple[Row, str]]:
        position = 0
        for batch in _batches(file, groups, path.name) if groups else ():
            for row in batch:
                if position >= inside:
                    yield row, ""
                position += 1

    return rows(), skipped + inside


def _batches(file: Any, groups: list[int], name: str) -> Iterator[list[Row]]:
    try:
        for batch in file.iter_batches(batch_size=_BATCH_ROWS, row_groups=groups):
            yield batch.to_pylist()
    except Exception as error:  # pyarrow raises many kinds
        raise DatasetError(f"{name} cannot be read to its end: {error}") from error


def _opened(path: Path) -> IO[bytes]:
    if path.name.endswith(".gz"):
        return cast(IO[bytes], gzip.open(path))
    return path.open("rb")


def _line_rows(path: Path, skip: int) -> tuple[Iterator[tuple[Row, str]], int]:
    lines = _lines(path)
    skipped = sum(1 for _ in islice(lines, skip))
    return map(_parsed, lines), skipped


def _lines(path: Path) -> Iterator[bytes]:
    """Yield the non-empty lines. Raises DatasetError when the file is cut off or damaged."""
    try:
        with _opened(path) as stream:
            for line in stream:
                if line.strip():
                    yield line
    except (OSError, EOFError, zlib.error) as error:
        raise DatasetError(f"{path.name} cannot be read to its end: {error}") from None


def _parsed(line: bytes) -> tuple[Row, str]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        return {}, f"not JSON: {error}"
    return (row, "") if isinstance(row, dict) else ({}, "not an object")


def _json_rows(path: Path, skip: int) -> tuple[Iterator[tuple[Row, str]], int]:
    if path.stat().st_size > _MAX_JSON:
        raise DatasetError(
            f"{path.name} is larger than {_MAX_JSON >> 30} GiB: turn it into JSONL, which is streamed"
        )
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{path.name} is not JSON: {error}") from None
    rows = _records(value, path.name)
    skipped = min(skip, len(rows))
    found = ((row, "") if isinstance(row, dict) else ({}, "not an object") for row in rows[skipped:])
    return found, skipped


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
            return [dict(zip(value, row, strict=False)) for row in zip(*columns, strict=False)]
        if "instance_id" in value and all(isinstance(column, dict) for column in columns):
            return [
                {key: column.get(index) for key, column in value.items()} for index in value["instance_id"]
            ]
        if all(isinstance(column, dict) for column in columns):
            return columns
    raise DatasetError(f"{name} holds neither a list of rows nor columns")


def task_folders(source: Path, marker: str) -> list[Path]:
    """Return the folders that hold ``marker``, in a stable order. Raises DatasetError when there are none."""
    if not source.is_dir():
        raise DatasetError(f"there is no folder {source}")
    found = sorted(path.parent for path in source.rglob(marker))
    # A task's own tests may hold a task of their own; only the outermost count.
    outer = [folder for folder in found if not any(other in folder.parents for other in found)]
    if not outer:
        raise DatasetError(f"no task in {source}: no folder below it has a {marker}")
    return outer


def _folders(source: Path, form: Format, start: int) -> Iterator[Item]:
    assert form.read_folder is not None
    for number, folder in enumerate(task_folders(source, form.marker)):
        if number < start:
            continue
        name = folder.relative_to(source).as_posix()
        try:
            if any(leads_out(path, source) for path in folder.rglob("*")):
                raise DatasetError("it holds a link that leads out of the source")
            yield Item(number, name, form.read_folder(folder), "")
        except DatasetError as error:
            yield Item(
                number,
                name,
                {"instance_id": folder.name},
                "",
                f"{error.field}: {error}" if error.field else str(error),
            )


def _scripts(folder: Path, row: Row) -> dict[str, str]:
    """Return the scripts of a row, found by its instance id."""
    name = str(row.get("instance_id") or "")
    if not name or "/" in name or name.startswith("."):
        return {}
    files = {file: folder / name / file for file in ("run_script.sh", "parser.py")}
    return {
        file: path.read_text(encoding="utf-8", errors="replace")
        for file, path in files.items()
        if path.is_file() and not leads_out(path, folder.parent)
    }
