"""Datasets on disk: ``home/datasets/<name>/{dataset.json,tasks.jsonl,answers.jsonl}``.

The visible half of every row is in ``tasks.jsonl``. Gold patches and required tests are in
``answers.jsonl``, readable by the owner only. A dataset is created or replaced atomically.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from engine.datasets import replaced
from engine.errors import DatasetError
from engine.events import health
from engine.files import replace_folder
from engine.types import Task, TaskAnswer, TaskRow

FORMAT = 1
_ADDED_TO_TASK = frozenset({"env"})
_ADDED_TO_ANSWER = frozenset(
    {"log_parser", "expected", "hidden_paths", "timeout_s", "setup_patch", "binary_files", "own_box"}
)
T = TypeVar("T")
_TASK: TypeAdapter[Task] = TypeAdapter(Task)
_ANSWER: TypeAdapter[TaskAnswer] = TypeAdapter(TaskAnswer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Rows in file order, with their provenance."""

    name: str
    rows: tuple[TaskRow, ...]
    provenance: Mapping[str, Any]

    def split(self, name: str) -> tuple[TaskRow, ...]:
        """Return the rows of one split. Raises DatasetError when the dataset has no such split."""
        rows = tuple(row for row in self.rows if row.split == name)
        if not rows:
            known = ", ".join(sorted({row.split for row in self.rows})) or "none"
            raise DatasetError(f"dataset '{self.name}' has no split '{name}'; it has: {known}")
        return rows


def dataset_path(home: Path, name: str) -> Path:
    """Return the folder of a dataset, whether or not it exists."""
    return home / "datasets" / name


def with_content_id(row: TaskRow) -> TaskRow:
    """Return ``row`` with ``task.id`` set to 16 hex digits over everything that defines task and grading.

    Fields added by later versions count only if set, so that ids stay stable.
    """
    task = {name: value for name, value in asdict(row.task).items() if value or name not in _ADDED_TO_TASK}
    answer = {
        name: value for name, value in asdict(row.answer).items() if value or name not in _ADDED_TO_ANSWER
    }
    content = json.dumps([{**task, "id": ""}, answer], sort_keys=True, separators=(",", ":"))
    return replace(row, task=replace(row.task, id=hashlib.sha256(content.encode()).hexdigest()[:16]))


def save_dataset(home: Path, name: str, rows: Sequence[TaskRow], provenance: Mapping[str, Any]) -> Dataset:
    """Write a dataset atomically, replacing one of the same name.

    Raises:
        DatasetError: two rows share an id or an instance id.
    """
    for attribute in ("id", "instance_id"):
        seen: dict[str, int] = {}
        for number, row in enumerate(rows):
            value = getattr(row.task, attribute)
            if value in seen:
                raise DatasetError(
                    f"{attribute} '{value}' is already that of row {seen[value]}", row=number, field=attribute
                )
            seen[value] = number
    target = dataset_path(home, name)
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=target.parent))
    try:
        _write(staging, name, rows, provenance)
        swap_in(staging, target)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    return Dataset(name=name, rows=tuple(rows), provenance=dict(provenance))


def load_dataset(home: Path, name: str) -> Dataset:
    """Read a dataset.

    Raises:
        DatasetError: missing or malformed; names file, row and field.
    """
    folder, header = dataset_path(home, name), _read_header(home, name)
    tasks = list(_read_lines(folder / "tasks.jsonl"))
    answers = list(_read_lines(folder / "answers.jsonl"))
    if len(tasks) != len(answers):
        raise DatasetError(f"dataset '{name}' has {len(tasks)} tasks but {len(answers)} answers")
    rows = tuple(
        _row(number, task, answer) for number, (task, answer) in enumerate(zip(tasks, answers, strict=True))
    )
    return Dataset(name=name, rows=rows, provenance=header.get("provenance", {}))


def iterate_rows(home: Path, name: str) -> Iterator[TaskRow]:
    """Iterate over the rows of a dataset, with one in memory. Raises DatasetError as ``load_dataset``."""
    folder, _ = dataset_path(home, name), _read_header(home, name)
    lines = zip_longest(_read_lines(folder / "tasks.jsonl"), _read_lines(folder / "answers.jsonl"))
    for number, (task, answer) in enumerate(lines):
        if task is None or answer is None:
            raise DatasetError(f"dataset '{name}' has another number of tasks than of answers")
        yield _row(number, task, answer)


def _read_header(home: Path, name: str) -> dict[str, Any]:
    folder = dataset_path(home, name)
    try:
        header: dict[str, Any] = json.loads((folder / "dataset.json").read_text())
    except FileNotFoundError:
        raise DatasetError(
            f"there is no dataset '{name}' in {folder.parent}; make it with a curate run"
        ) from None
    except ValueError as error:
        raise DatasetError(f"{folder / 'dataset.json'} is not JSON: {error}") from error
    if header.get("format") != FORMAT:
        raise DatasetError(f"dataset '{name}' has format {header.get('format')}, this version reads {FORMAT}")
    return header


def _write(folder: Path, name: str, rows: Sequence[TaskRow], provenance: Mapping[str, Any]) -> None:
    splits: dict[str, int] = {}
    for row in rows:
        splits[row.split] = splits.get(row.split, 0) + 1
    (folder / "dataset.json").write_text(header_text(name, splits, provenance))
    with (folder / "tasks.jsonl").open("w") as file:
        file.writelines(map(task_line, rows))
    descriptor = os.open(folder / "answers.jsonl", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.writelines(map(answer_line, rows))
    folder.chmod(0o755)


def header_text(name: str, splits: Mapping[str, int], provenance: Mapping[str, Any]) -> str:
    """Return the content of ``dataset.json``."""
    header = {"format": FORMAT, "name": name, "splits": dict(splits), "provenance": dict(provenance)}
    return json.dumps(header, indent=1, sort_keys=True) + "\n"


def task_line(row: TaskRow) -> str:
    """Return the line of a row in ``tasks.jsonl``."""
    return json.dumps({**asdict(row.task), "split": row.split}) + "\n"


def answer_line(row: TaskRow) -> str:
    """Return the line of a row in ``answers.jsonl``."""
    return json.dumps({"id": row.task.id, **asdict(row.answer)}) + "\n"


def swap_in(staging: Path, target: Path) -> None:
    """Replace the dataset folder with the new one; health records and ids of the old rows are kept."""
    if not target.exists():
        replace_folder(staging, target)
        return
    with health.locked(target):
        for name in health.KEPT:
            if (target / name).is_dir():
                shutil.copytree(target / name, staging / name, copy_function=os.link)
            elif (target / name).exists():
                shutil.copy2(target / name, staging / name)
        replaced.record(target, staging)
        replace_folder(staging, target)


def _read_lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        # Only line feeds end lines: JSON strings may contain unescaped separators such as U+2028.
        with path.open(newline="\n") as file:
            for number, line in enumerate(file):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                except ValueError as error:
                    raise DatasetError(f"{path.name}: not JSON: {error}", row=number) from error
                if not isinstance(row, dict):
                    raise DatasetError(f"{path.name}: not an object", row=number)
                yield row
    except OSError as error:
        raise DatasetError(f"cannot read {path}: {error.strerror}") from error


def _row(number: int, task: dict[str, Any], answer: dict[str, Any]) -> TaskRow:
    split = task.pop("split", None)
    if not isinstance(split, str) or not split:
        raise DatasetError("tasks.jsonl: missing", row=number, field="split")
    if answer.pop("id", None) != task.get("id"):
        raise DatasetError("answers.jsonl: belongs to another task", row=number, field="id")
    return TaskRow(
        task=_validated(_TASK, task, "tasks.jsonl", number),
        answer=_validated(_ANSWER, answer, "answers.jsonl", number),
        split=split,
    )


def _validated(adapter: TypeAdapter[T], data: dict[str, Any], file: str, number: int) -> T:
    try:
        return adapter.validate_python(data, extra="forbid")
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise DatasetError(f"{file}: {first['msg']}", row=number, field=field) from None
