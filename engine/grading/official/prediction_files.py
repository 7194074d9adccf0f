"""Predictions in files.

| format | instance | patch | model |
|---|---|---|---|
| SWE-bench | ``instance_id`` | ``model_patch`` | ``model_name_or_path`` |
| Multi-SWE | ``org``, ``repo``, ``number`` | ``fix_patch`` | ``model_name_or_path`` |
| SWE-bench Pro | ``instance_id`` | ``patch`` | ``prefix`` |

An invalid prediction, e.g. without its format's field for the patch, is rejected with its line or number.
Of several predictions for one instance the last counts, as in the official harness.
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
"""Word that selects each row's own gold patch instead of a predictions file."""
_SUFFIXES = (".jsonl", ".jsonl.gz", ".json")
_MODEL = "None"


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionFile:
    """Predictions of a file, and the reasons why others were rejected."""

    predictions: tuple[Prediction, ...]
    rejected: tuple[str, ...] = ()
    """Place and reason of every rejected prediction."""


def read_predictions(path: Path, known: Collection[str] | None = None) -> PredictionFile:
    """Read a ``.jsonl`` file, or a ``.json`` file with a list or a map by instance.

    Args:
        path: the file.
        known: instances of the dataset; predictions for others are rejected. None accepts all.

    Raises:
        DatasetError: the file is missing or of another kind, or has no usable prediction.
    """
    if suffix_of(path) not in _SUFFIXES:
        raise DatasetError(f"{path.name}: predictions are .jsonl or .json files, or the word '{GOLD}'")
    if not path.is_file():
        raise DatasetError(f"there is no file {path}")
    predictions: dict[str, Prediction] = {}
    places: dict[str, str] = {}
    rejected = []
    for number, file_row in enumerate(open_rows(path, 0)[0]):
        place = f"line {file_row.line}" if file_row.line else f"prediction {number}"
        try:
            prediction = _prediction(file_row)
            name = prediction.instance_id
            if known is not None and name not in known:
                shown = name if name.isprintable() and name == name.strip() else repr(name)
                raise DatasetError(f"the instance is not in the dataset: {shown}")
            if name in predictions:
                rejected.append(f"{places[name]}: the file predicts '{name}' again, the last one counts")
            predictions[name], places[name] = prediction, place
        except DatasetError as error:
            field = f", field '{error.field}'" if error.field else ""
            rejected.append(f"{place}{field}: {error}")
    if not predictions:
        first = f"; the first of {len(rejected)} problems: {rejected[0]}" if rejected else ""
        raise DatasetError(f"{path} holds no predictions for this dataset{first}")
    return PredictionFile(predictions=tuple(predictions.values()), rejected=tuple(rejected))


def _prediction(read: FileRow) -> Prediction:
    if read.error:
        raise DatasetError(read.error)
    row = read.row
    is_multi_swe = "instance_id" not in row and {"org", "repo", "number"} <= row.keys()
    is_pro = "model_patch" not in row and {"patch", "prefix"} <= row.keys()
    field = "fix_patch" if is_multi_swe else "patch" if is_pro else "model_patch"
    if field not in row:
        known = ", ".join(sorted(row)[:12])
        raise DatasetError(f"missing; expected the patch in this field, found only {known}", field=field)
    patch = row[field]
    if patch is not None and not isinstance(patch, str):
        raise DatasetError(f"the patch is not text but {type(patch).__name__}", field=field)
    prediction = Prediction(
        instance_id=multi_swe_id(row) if is_multi_swe else text(row, "instance_id"),
        model_name_or_path=str(row.get("prefix" if is_pro else "model_name_or_path") or _MODEL),
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
