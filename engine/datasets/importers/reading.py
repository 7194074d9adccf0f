"""Reader of a source's rows, one at a time, from data files (``files``) or task folders.

An unreadable row is an item with an error, so that it does not fail the import. The order is stable (file
names, then positions), as row numbers and resuming require.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engine.datasets.importers.base import Format
from engine.datasets.importers.fields import Row
from engine.datasets.importers.files import SUFFIXES, count_file_rows, open_rows, suffix_of
from engine.errors import DatasetError
from engine.reading import read_bounded

_SPLIT = re.compile(r"^(dev_[A-Za-z0-9]+|train|test|dev|validation)(?:-\d+-of-\d+|[-_.].*)?$")
_SCRIPTS = "run_scripts"
_MAX_SCRIPT = 4 << 20
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
    line: int = 0
    """Line of the file, counted from 1; 0 if rows are not lines."""


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
        DatasetError: there are none; the message has the criteria.
    """
    path = source.path
    if not path.exists():
        raise DatasetError(f"there is no file or folder {path}")
    root = path.parent if path.is_file() else path
    paths = [path] if path.is_file() else sorted(path.rglob("*"))
    inside = [file for file in paths if file.is_file() and not leads_out(file, root)]
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


def _is_data(path: Path) -> bool:
    """Return whether a file may hold rows; hidden files, dataset descriptions and scripts do not."""
    hidden = any(part.startswith(".") or part == _SCRIPTS for part in path.parts)
    return bool(suffix_of(path)) and not hidden and path.name not in _DESCRIPTIONS


def split_of(path: Path) -> str:
    """Return the split that a path names (``data/train-00000-of-00002.parquet``: ``train``), if any."""
    for part in reversed(path.parts):
        name = part.removesuffix(suffix_of(Path(part)))
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
        for read in rows:
            row, error = read.row, read.error
            if scripts is not None and not error:
                row, error = _with_scripts(scripts, row)
            yield Item(number, file.name, row, file.split, error, read.line)
            number += 1


def count_rows(source: Source, form: Format, *, split: str = "") -> int:
    """Return the number of rows without converting them; 0 when counting would read the whole source."""
    if form.read_folder is not None:
        return len(task_folders(source.path, form.marker))
    counts = [count_file_rows(file.path) for file in data_files(source, split)]
    return 0 if None in counts else sum(count for count in counts if count is not None)


def task_folders(source: Path, marker: str) -> list[Path]:
    """Return the folders with a ``marker`` file, in a stable order. Raises DatasetError if there are none."""
    if not source.is_dir():
        raise DatasetError(f"there is no folder {source}")
    folders = {path.parent for path in source.rglob(marker)}
    # A task's tests may contain another task; only the outermost folders count.
    outer = sorted(folder for folder in folders if folders.isdisjoint(folder.parents))
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
                raise DatasetError("it contains a link that leads out of the source")
            yield Item(number, name, form.read_folder(folder), "")
        except Exception as error:  # untrusted folders fail in many ways
            yield Item(number, name, {"instance_id": folder.name}, "", _problem(error))


def _problem(error: Exception) -> str:
    if not isinstance(error, DatasetError):
        return f"cannot be read: {type(error).__name__}: {str(error)[:200]}"
    return f"{error.field}: {error}" if error.field else str(error)


def _with_scripts(folder: Path, row: Row) -> tuple[Row, str]:
    """Return a row with the scripts of its instance, or the reason why they cannot be read."""
    name = str(row.get("instance_id") or "")
    if not name or "/" in name or name.startswith("."):
        return row, ""
    scripts: dict[str, str] = {}
    for file in ("run_script.sh", "parser.py"):
        path = folder / name / file
        try:
            if path.is_file() and not leads_out(path, folder.parent):
                scripts[file] = read_bounded(path, _MAX_SCRIPT).decode()
        except (OSError, ValueError, RuntimeError) as error:
            return row, f"{_SCRIPTS}/{name}/{file}: {_problem(error)}"
    return {**row, **scripts}, ""
