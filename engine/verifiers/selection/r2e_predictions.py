"""R2E-Gym's published ``32B_predictions``: per task the outcomes and verifier scores of about 26 rollouts.

Columns are lists written as Python literals; entry i of each belongs to rollout i. ``published_curves``
computes what their notebook ``verifier_evals.ipynb`` estimates from 1,000 random draws, exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from engine.datasets.importers.fields import Row, structure
from engine.errors import DatasetError
from engine.verifiers.selection.candidates import Candidate
from engine.verifiers.selection.curves import Curve, Short, curves
from engine.verifiers.selection.rules import EB, EF, ORACLE, Hybrid

COLUMNS = {
    "gt_rewards": "resolved",
    "regression_rates": "regression_passes",
    "mean_predicted_rewards": "reproduction_passes",
    "avg_yes_prob": "p_yes",
    "step_counts": "steps",
}
"""Column → field of a candidate."""
NOTEBOOK_RULES = (ORACLE, EB, EF, Hybrid(minimum=3))
NOTEBOOK_KS = range(1, 27)


def published_curves(candidates: Sequence[Candidate]) -> list[Curve]:
    """Compute the curves of the notebook: pass@K, eb, ef and hybrid (at least 3 stay) for K = 1 … 26."""
    return curves(candidates, NOTEBOOK_RULES, NOTEBOOK_KS, short=Short.ALL)


def candidates_of(row: Row, number: int) -> Iterator[Candidate]:
    """Yield the rollouts of one row, a task with the row's number as its id.

    Raises:
        DatasetError: a column is missing, malformed or of another length.
    """
    values = {column: _list(row, column, number) for column in COLUMNS}
    lengths = {column: len(entries) for column, entries in values.items()}
    if len(set(lengths.values())) > 1:
        raise DatasetError(f"columns differ in length: {lengths}; entry i of each is rollout i", row=number)
    for index in range(lengths["gt_rewards"]):
        fields = {COLUMNS[name]: _number(entries[index], name, number) for name, entries in values.items()}
        yield Candidate(task_id=str(number), trajectory_id=f"{number}:{index}", **fields)


def _list(row: Row, column: str, number: int) -> list[Any]:
    entries = structure(row.get(column))
    if not isinstance(entries, list | tuple):
        raise DatasetError(
            "no list of numbers, nor one written as a Python literal", row=number, field=column
        )
    return list(entries)


def _number(value: Any, column: str, number: int) -> Any:
    if not isinstance(value, bool | int | float) or not math.isfinite(value):
        raise DatasetError(f"the entry {value!r} is not a finite number", row=number, field=column)
    if column == "gt_rewards":
        if value not in (0, 1):
            raise DatasetError(f"the reward {value!r} is neither 0 nor 1", row=number, field=column)
        return bool(value)
    return value
