"""Predictions in files: SWE-bench's ``instance_id`` and ``model_patch``, Multi-SWE's ``org``, ``repo``,
``number`` and ``fix_patch``.

What cannot be read costs one prediction, with its line or number.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.datasets.importers.fields import find, text
from engine.datasets.importers.files import FileRow, open_rows, suffix_of
from engine.datasets.importers.rejects import check_text
from engine.errors import DatasetError
from engine.events.harness import Prediction

GOLD = "gold"
"""Name that stands for each row's own gold patch instead of a predictions file."""
_SUFFIXES = (".jsonl", ".jsonl.gz", ".json")
_MODEL = "None"


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionFile:
    """Predictions of a file, and what is wrong with the others."""

    predictions: tuple[Prediction, ...]
    rejected: tuple[str, ...] = ()
    """Place and reason of every rejected prediction."""


def read_predictions(path: Path, known: Collection[str] | None = None) -> PredictionFile:
    """Read a ``.jsonl`` file, or a ``.json`` file with a list or a map by instance.

    Args:
        path: the file.
        known: instances of the dataset; predictions for others are rejected. None knows all.

    Raises:
        DatasetError: the file is missing or of another kind, or holds no usable prediction; says why.
    """
    if suffix_of(path) not in _SUFFIXES:
        raise DatasetError(f"{path.name}: predictions are .jsonl or .json files, or the word '{GOLD}'")
    if not path.is_file():
        raise DatasetError(f"there is no file {path}")
    predictions: dict[str, Prediction] = {}
    rejected = []
    for number, read in enumerate(open_rows(path, 0)[0]):
        try:
            prediction = _prediction(read)
            name = prediction.instance_id
            if known is not None and name not in known:
                raise DatasetError(f"the instance is not in the dataset: {name}")
            if name in predictions:
                raise DatasetError(f"the file predicts '{name}' twice")
            predictions[name] = prediction
        except DatasetError as error:
            field = f", field '{error.field}'" if error.field else ""
            place = f"line {read.line}" if read.line else f"prediction {number}"
            rejected.append(f"{place}{field}: {error}")
    if not predictions:
        first = f"; the first of {len(rejected)} problems: {rejected[0]}" if rejected else ""
        raise DatasetError(f"{path} holds no predictions for this dataset{first}")
    return PredictionFile(predictions=tuple(predictions.values()), rejected=tuple(rejected))


def _prediction(read: FileRow) -> Prediction:
    if read.error:
        raise DatasetError(read.error)
    row = read.row
    is_multi_swe = "instance_id" not in row and "fix_patch" in row
    field = "fix_patch" if is_multi_swe else "model_patch"
    patch = row.get(field)
    if patch is not None and not isinstance(patch, str):
        raise DatasetError(f"the patch is not text but {type(patch).__name__}", field=field)
    prediction = Prediction(
        instance_id=multi_swe_id(row) if is_multi_swe else text(row, "instance_id"),
        model_name_or_path=str(row.get("model_name_or_path") or _MODEL),
        model_patch=patch,
    )
    check_text(prediction.instance_id, "instance_id")
    check_text(prediction.model_name_or_path, "model_name_or_path")
    try:
        (patch or "").encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise DatasetError(f"the patch holds a lone surrogate: {error.reason}", field=field) from None
    return prediction


def multi_swe_id(row: Any) -> str:
    """Return the instance id of a Multi-SWE row or prediction. Raises DatasetError with the field."""
    number = find(row, "number")[1]
    if not str(number).isdigit():
        raise DatasetError("not a number", field="number")
    return f"{text(row, 'org')}__{text(row, 'repo')}-{number}"
