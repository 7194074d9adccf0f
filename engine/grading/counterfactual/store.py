"""References on disk: ``<dataset folder>/references/<hash of the task's id>.json.gz``, one file per row.

``references/caught.jsonl`` has a line for each row in which a run caught tampering, and for each such run.
The visible part, coverage or the reason of a failed proof, is written to ``validation.jsonl`` beside it.
References are as secret as the hidden tests: readable by the owner only, never in an agent's sandbox, an
export or a page.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import json
import os
import secrets
import tempfile
import time
import zlib
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import structlog
from pydantic import TypeAdapter, ValidationError

from engine.datasets.health import row_content
from engine.events.health import REFERENCES_FOLDER, ProofRecord, append
from engine.grading.counterfactual.base import Reference
from engine.grading.counterfactual.proof import coverage_of
from engine.types import TaskRow

_log = structlog.get_logger(__name__)
_FORMAT = 14
_CAUGHT = "caught.jsonl"
_PROBLEM_CHARS = 2000
_REFERENCE: TypeAdapter[Reference] = TypeAdapter(Reference)


class FileReferences:
    """References in a dataset's folder.

    Args:
        folder: folder of the dataset.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / REFERENCES_FOLDER

    async def load(self, row: TaskRow) -> Reference | None:
        """Return the reference of a row; None when there is none, it is damaged or the row has changed."""
        return await asyncio.to_thread(self._load, row)

    async def save(self, row: TaskRow, reference: Reference) -> None:
        """Store the reference of a row in place of an older one, and publish its coverage.

        Raises:
            OSError, DatasetError: it cannot be written.
        """
        await asyncio.to_thread(self._save, row, reference)
        await asyncio.to_thread(append, self._folder.parent, [_record(row, reference)])

    async def mark(self, row: TaskRow, run_id: str) -> None:
        """Remember that a run caught tampering in a row. Raises OSError."""
        await asyncio.to_thread(self._mark, row.task.id, run_id)

    async def marks(self) -> dict[str, frozenset[str]]:
        """Return task id → runs that caught tampering in the row; damaged lines are left out."""
        return await asyncio.to_thread(self._marks)

    def _mark(self, task_id: str, run_id: str) -> None:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        with (self._folder / _CAUGHT).open("a") as file:
            file.write(json.dumps({"task": task_id, "run": run_id}) + "\n")

    def _marks(self) -> dict[str, frozenset[str]]:
        marks: dict[str, frozenset[str]] = {}
        try:
            lines = (self._folder / _CAUGHT).read_text().splitlines()
        except FileNotFoundError:
            return {}
        for line in lines:
            with suppress(ValueError, KeyError, TypeError):
                mark = json.loads(line)
                marks[mark["task"]] = marks.get(mark["task"], frozenset()) | {mark["run"]}
        return marks

    def _path(self, row: TaskRow) -> Path:
        return self._folder / f"{hashlib.sha256(row.task.id.encode()).hexdigest()[:32]}.json.gz"

    def _load(self, row: TaskRow) -> Reference | None:
        path = self._path(row)
        try:
            reference = _unpacked(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, EOFError, ValueError, KeyError, zlib.error, ValidationError) as error:
            _log.warning("a reference cannot be read", path=str(path), error=str(error)[:200])
            return None
        return reference if reference.content == row_content(row) else None

    def _save(self, row: TaskRow, reference: Reference) -> None:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=self._folder, prefix=".", suffix=".tmp")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(_packed(reference))
            Path(temporary).replace(self._path(row))
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


def _record(row: TaskRow, reference: Reference) -> ProofRecord:
    """Return the coverage of a row's tests, or the reason why their proof failed."""
    return ProofRecord(
        id=secrets.token_hex(16),
        task_id=row.task.id,
        content=reference.content,
        time=time.time(),
        coverage=None if reference.problem else coverage_of(reference),
        problem=reference.problem[:_PROBLEM_CHARS],
    )


def _packed(reference: Reference) -> bytes:
    files = {path: base64.b64encode(content).decode() for path, content in reference.files.items()}
    content = {"format": _FORMAT, **asdict(reference), "files": files}
    return gzip.compress(json.dumps(content).encode(), compresslevel=6)


def _unpacked(data: bytes) -> Reference:
    content = json.loads(gzip.decompress(data))
    if content.pop("format", None) != _FORMAT:
        raise ValueError("it has another format")
    files = {path: base64.b64decode(text, validate=True) for path, text in content["files"].items()}
    return _REFERENCE.validate_python({**content, "files": files})
