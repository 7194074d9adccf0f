"""Reads of imports: runs, importable files, and rows that were left out.

The lists of rejected and excluded rows are files beside the dataset; a page reads only the part it shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from django.conf import settings

from engine.reading import parse_json
from engine.types import RunKind
from webapp.core.selectors import Page
from webapp.datasets.models.datasets import Dataset
from webapp.runs.models.runs import Run

Kind = Literal["rejects", "excluded"]
_PAGE = 100
_CONSIDERED = 50
_MAX_OFFERED = 200
_DATA = (".parquet", ".jsonl", ".ndjson", ".jsonl.gz", ".json")


def unfinished_imports(limit: int = 5) -> list[Run]:
    """Return import runs in progress, and import runs that ended without a dataset, newest first."""
    unsuccessful = Run.objects.filter(kind=RunKind.IMPORT).exclude(state="succeeded")
    recent = list(unsuccessful.order_by("-id")[:_CONSIDERED])
    names = {run.config["importing"]["output"] for run in recent}
    synced = dict(Dataset.objects.filter(name__in=names).values_list("name", "synced_at"))
    return [run for run in recent if not _is_settled(run, synced)][:limit]


def _is_settled(run: Run, synced: Mapping[str, datetime | None]) -> bool:
    """Return whether the dataset of an ended import was created later, e.g. by another import."""
    synced_at = synced.get(run.config["importing"]["output"])
    return run.finished_at is not None and synced_at is not None and synced_at > run.finished_at


def offered_sources(folders: Sequence[Path]) -> list[str]:
    """Return the names of data files and subfolders in the import folders."""
    names: list[str] = []
    for folder in folders:
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if path.name.startswith("."):
                continue
            if path.is_dir() or path.name.endswith(_DATA):
                names.append(path.name)
    return names[:_MAX_OFFERED]


def left_out(dataset: Dataset, kind: Kind, *, number: int) -> Page[dict[str, Any]]:
    """Return rows missing in the dataset: unreadable (``rejects``) or unwanted (``excluded``)."""
    path = Path(settings.TRAINYARD_HOME) / "datasets" / dataset.name / f"{kind}.jsonl"
    try:
        with path.open("rb") as lines:
            total = sum(1 for _ in lines)
            number = max(1, min(number, -(-total // _PAGE)))
            lines.seek(0)
            shown = [_entry(line, path.name) for line in islice(lines, (number - 1) * _PAGE, number * _PAGE)]
    except FileNotFoundError:
        return Page(rows=[], number=1, size=_PAGE, total=0)
    return Page(rows=shown, number=number, size=_PAGE, total=total)


def _entry(line: bytes, file: str) -> dict[str, Any]:
    try:
        entry = parse_json(line)
    except ValueError:
        entry = None
    damaged = f"a damaged line of {file}"
    return entry if isinstance(entry, dict) else {"row": None, "reason": damaged, "detail": damaged}
