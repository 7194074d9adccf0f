"""Tables of rollouts in files: one row per rollout, columns named like the fields of ``Candidate``."""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType

from engine.datasets.importers.fields import Row
from engine.datasets.importers.files import open_rows
from engine.errors import DatasetError
from engine.verifiers.selection import r2e_predictions
from engine.verifiers.selection.candidates import Candidate

_TYPES = MappingProxyType(
    {
        "task_id": (str,),
        "trajectory_id": (str, int),
        "resolved": (bool,),
        "p_yes": (int, float),
        "regression_passes": (int, float),
        "reproduction_passes": (int, float),
        "steps": (int,),
        "tokens": (int,),
        "patch_hash": (str,),
    }
)


def read_table(path: Path) -> list[Candidate]:
    """Read the rollouts of a parquet, JSONL or JSON file; R2E-Gym's predictions are found by their columns.

    An absent column or a null is a score that was not computed; unknown columns are ignored.

    Raises:
        DatasetError: a row cannot be read, lacks a task or trajectory, or has a value of another type.
    """
    rows, _ = open_rows(path, 0)
    candidates: list[Candidate] = []
    for number, row in enumerate(rows):
        if row.error:
            raise DatasetError(f"{path}: {row.error}", row=number)
        if row.row.keys() >= r2e_predictions.COLUMNS.keys():
            candidates += r2e_predictions.candidates_of(row.row, number)
        else:
            candidates.append(_candidate(row.row, number))
    return candidates


def _candidate(row: Row, number: int) -> Candidate:
    given = {field.name: row[field.name] for field in fields(Candidate) if row.get(field.name) is not None}
    for name in ("task_id", "trajectory_id"):
        if name not in given:
            raise DatasetError(f"has no {name}; every row needs one", row=number, field=name)
    for name, value in given.items():
        # a bool is an int in Python, but never a count here
        if type(value) not in _TYPES[name]:
            expected = " or ".join(expected_type.__name__ for expected_type in _TYPES[name])
            raise DatasetError(f"is {value!r}; expected {expected}", row=number, field=name)
        if isinstance(value, float) and not math.isfinite(value):
            raise DatasetError(
                f"is {value!r}; leave out what is unknown, or write null", row=number, field=name
            )
    return Candidate(**{**given, "trajectory_id": str(given["trajectory_id"])})
