"""Mirror of the dataset folders in Postgres: pages and queries read no files.

The folder's JSON lines are read without the engine's dataset code, which ``webapp`` does not import and which
validated the lines when it wrote them. They are streamed, so memory does not grow with the dataset. A task
removed from its dataset is kept as inactive, because trajectories refer to it.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, BinaryIO, Literal

from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.utils import timezone

from engine.errors import DatasetError
from engine.events.health import ValidationRecord, content_hash
from engine.events.health import read as read_health
from engine.reading import parse_json
from engine.redaction import redactor
from webapp.core.services import audit, notifications
from webapp.core.services.cleaning import without_nul
from webapp.core.streaming import batched, in_threads
from webapp.datasets.models.datasets import Dataset, Task, TaskAnswer
from webapp.datasets.services import health
from webapp.datasets.services.r2e_rows import check_row, r2e_row
from webapp.runs.models.runs import Run

_FILES = ("dataset.json", "tasks.jsonl", "answers.jsonl")
_TASK_FIELDS = (
    "instance_id", "split", "position", "repo", "base_commit", "problem_statement", "image", "workdir",
    "difficulty", "metadata", "active", "content",
)  # fmt: skip
_ANSWER_FIELDS = (
    "gold_patch", "test_patch", "test_files", "binary_files", "fail_to_pass", "pass_to_pass",
    "test_command", "grade_rule", "log_parser", "expected", "hidden_paths", "timeout_s", "setup_patch",
    "deterministic", "own_box", "metadata",
)  # fmt: skip
_BATCH = 500
_LINES_A_PART = 50
_BATCH_CHARACTERS = 8 << 20
"""Maximum number of characters in a batch of rows or in a part of an export."""
Row = Mapping[str, Any]
ExportFormat = Literal["trainyard", "r2e-gym"]


def sync(*, name: str, run_id: int | None = None, actor: User | None = None) -> Dataset:
    """Update Postgres from ``home/datasets/<name>``; an unchanged folder costs one hash.

    Args:
        name: the dataset's folder.
        run_id: the run that created the dataset, if any.
        actor: user who requested it; None for the system.

    Raises:
        DatasetError: the folder is missing or malformed; nothing was changed.
    """
    folder = Path(settings.TRAINYARD_HOME) / "datasets" / name
    with ExitStack() as stack:
        try:
            files = [stack.enter_context((folder / file).open("rb")) for file in _FILES]
        except OSError as error:
            raise DatasetError(f"cannot read the dataset '{name}' in {folder}: {error.strerror}") from error
        checksum = _checksum(files)
        with transaction.atomic():
            dataset, _ = Dataset.objects.get_or_create(name=name)
            dataset = Dataset.objects.select_for_update().get(pk=dataset.pk)
            if dataset.checksum != checksum:
                store_tasks(
                    dataset=dataset,
                    tasks=_json_lines(files[1], _FILES[1]),
                    answers=_json_lines(files[2], _FILES[2]),
                    provenance=_provenance(_json(files[0].read(), _FILES[0])),
                    checksum=checksum,
                )
                audit.record(
                    actor=actor, action="dataset.sync", run_id=run_id, target=f"dataset {name}",
                    changes={"num_tasks": dataset.num_tasks, "checksum": checksum},
                )  # fmt: skip
            if run_id is not None:
                Dataset.objects.filter(pk=dataset.pk).update(run_id=run_id)
                notifications.run_changed(run_id, 0)
    health.mirror(dataset=dataset)
    return dataset


def _provenance(header: Any) -> dict[str, Any]:
    """Return the provenance of a dataset, including the tools' messages about skipped sources."""
    known = redactor().tree(header.get("provenance", header)) if isinstance(header, dict) else {}
    return known if isinstance(known, dict) else {}


def export_lines(*, name: str, form: ExportFormat = "trainyard") -> Iterator[str]:
    """Yield a dataset's lines in an import format.

    With ``trainyard`` the rows ``{"task", "answer", "split"}`` are unchanged, so an import restores them
    under the same ids. Rows whose test strength was measured have it too (``strength``, see
    ``engine.events.health.TestStrength``). With ``r2e-gym`` rows have the schema of R2E-Gym (``r2e_rows``).

    Raises:
        DatasetError: the folder is missing or malformed, or the format cannot express a row, which is found
            before the first line.
    """
    home = Path(settings.TRAINYARD_HOME)
    if form == "r2e-gym":
        for number, (_, answer) in enumerate(_stored_rows(name)):
            check_row(number, answer)
        for task, answer in _stored_rows(name):
            yield json.dumps(r2e_row(task, answer, home)) + "\n"
        return
    strengths = {
        (record.task_id, record.content): record.strength.model_dump(mode="json")
        for record in read_health(home / "datasets" / name)
        if isinstance(record, ValidationRecord) and record.strength is not None
    }
    for task, answer in _stored_rows(name):
        visible = {key: value for key, value in task.items() if key != "split"}
        hidden = {key: value for key, value in answer.items() if key != "id"}
        line = {"task": visible, "answer": hidden, "split": task.get("split", "")}
        if strengths:
            strength = strengths.get((str(task.get("id")), content_hash(task, answer)))
            line |= {"strength": strength} if strength else {}
        yield json.dumps(line) + "\n"


def _stored_rows(name: str) -> Iterator[tuple[Row, Row]]:
    """Yield the visible and the hidden half of each row of a dataset's folder."""
    folder = Path(settings.TRAINYARD_HOME) / "datasets" / name
    try:
        with (folder / _FILES[1]).open("rb") as tasks, (folder / _FILES[2]).open("rb") as answers:
            pairs: Iterator[tuple[Row, Row]] = zip_longest(
                _json_lines(tasks, _FILES[1]), _json_lines(answers, _FILES[2]), fillvalue={}
            )
            for number, (task, answer) in enumerate(pairs):
                if task.get("id") != answer.get("id"):
                    raise DatasetError(f"{_FILES[2]}: belongs to another task", row=number, field="id")
                yield task, answer
    except OSError as error:
        raise DatasetError(f"cannot read the dataset '{name}' in {folder}: {error.strerror}") from error


def export_parts(*, name: str, form: ExportFormat = "trainyard") -> AsyncIterator[str]:
    """Return ``export_lines`` in chunks of lines, read in threads.

    Raises DatasetError at the call, not at the first item, if the folder is missing or the format unsuitable.
    """
    lines = export_lines(name=name, form=form)
    # Read the first line now: an error after the response has begun could not be reported.
    whole = chain([next(lines, "")], lines)
    parts = batched(whole, count=_LINES_A_PART, size=_BATCH_CHARACTERS, size_of=len)
    return in_threads(map("".join, parts))


def _checksum(files: Sequence[BinaryIO]) -> str:
    """Return the SHA-256 of the files' contents and rewind the files."""
    digest = hashlib.sha256()
    for number, file in enumerate(files):
        digest.update(b"\0" if number else b"")
        while chunk := file.read(1 << 20):
            digest.update(chunk)
        file.seek(0)
    return digest.hexdigest()


@transaction.atomic
def store_tasks(
    *,
    dataset: Dataset,
    tasks: Iterable[Row],
    answers: Iterable[Row],
    provenance: Mapping[str, Any],
    checksum: str = "",
) -> None:
    """Replace a dataset's tasks by ``tasks`` (``id`` is the task's key) and link rows that refer to them.

    Args:
        dataset: the dataset.
        tasks: visible parts of the rows.
        answers: hidden parts of the rows, in the same order.
        provenance: the dataset's own description of its origin.
        checksum: checksum of the rows' files.

    Raises:
        DatasetError: a row lacks a field, or an answer belongs to another task; nothing was changed.
    """
    splits: Counter[str] = Counter()
    stored: dict[str, int] = {}
    pairs: Iterator[tuple[int, tuple[Row, Row]]] = enumerate(zip_longest(tasks, answers, fillvalue={}))
    for batch in batched(pairs, count=_BATCH, size=_BATCH_CHARACTERS, size_of=_num_characters):
        stored |= _store_batch(dataset, batch, splits)
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE webapp_task SET active = FALSE WHERE dataset_id = %s AND active AND key <> ALL(%s)",
            [dataset.pk, list(stored)],
        )
    dataset.splits = dict(splits)
    dataset.num_tasks = len(stored)
    dataset.provenance = without_nul(dict(provenance))
    dataset.checksum = checksum
    dataset.synced_at = timezone.now()
    dataset.save()
    health.refresh_standings(task_ids=list(stored.values()))
    _link(dataset)


def _num_characters(value: Any) -> int:
    """Return the length of all texts in a row."""
    if isinstance(value, str):
        return len(value)
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return sum(map(_num_characters, inner))


def _store_batch(
    dataset: Dataset, batch: Sequence[tuple[int, tuple[Row, Row]]], splits: Counter[str]
) -> dict[str, int]:
    """Upsert some rows and return the tasks' ids by key."""
    tasks = []
    for position, (row, answer) in batch:
        if row.get("id") != answer.get("id"):
            message = f"an answer of '{dataset.name}' belongs to another task, or to none"
            raise DatasetError(message, row=position, field="id")
        try:
            tasks.append(_task(dataset, position, row, answer))
        except KeyError as error:
            raise DatasetError(f"a task of '{dataset.name}' has no field {error}", row=position) from None
    stored = Task.objects.bulk_create(
        tasks, update_conflicts=True, unique_fields=["dataset", "key"], update_fields=list(_TASK_FIELDS)
    )
    splits.update(task.split for task in stored)
    ids = {task.key: task.pk for task in stored}
    TaskAnswer.objects.bulk_create(
        [TaskAnswer(task_id=ids[row["id"]], **_picked(answer, _ANSWER_FIELDS)) for _, (row, answer) in batch],
        update_conflicts=True, unique_fields=["task"], update_fields=list(_ANSWER_FIELDS),
    )  # fmt: skip
    return ids


def _task(dataset: Dataset, position: int, row: Row, answer: Row) -> Task:
    fields = _picked(row, _TASK_FIELDS) | {"position": position, "active": True}
    fields["content"] = content_hash(row, answer)
    fields.setdefault("split", "train")
    return Task(dataset=dataset, key=row["id"], **{"instance_id": row["instance_id"]} | fields)


def _picked(row: Row, names: Sequence[str]) -> dict[str, Any]:
    return {name: without_nul(row[name]) for name in names if name in row}


def _link(dataset: Dataset) -> None:
    """Link runs, groups and trajectories that were stored before their dataset."""
    Run.objects.filter(dataset=None, config__dataset__name=dataset.name).update(dataset=dataset)
    with connection.cursor() as cursor:
        for table in ("webapp_group", "webapp_trajectory"):
            cursor.execute(
                f"UPDATE {table} x SET task_id = k.id FROM webapp_task k, webapp_run r"  # noqa: S608
                " WHERE x.task_id IS NULL AND x.run_id = r.id AND r.dataset_id = %s"
                " AND k.dataset_id = r.dataset_id AND k.key = x.task_key",
                [dataset.pk],
            )


def _json(content: bytes, file: str) -> Any:
    try:
        return parse_json(content)
    except ValueError as error:
        raise DatasetError(f"{file} is not JSON: {error}") from None


def _json_lines(lines: Iterable[bytes], file: str) -> Iterator[Row]:
    # A file's lines end at newlines only: JSON strings may contain other line separators unescaped.
    for number, line in enumerate(lines):
        if line.strip():
            row = _json(line, f"{file}, line {number + 1}")
            if not isinstance(row, dict):
                raise DatasetError(f"{file}: not an object", row=number)
            yield row
