"""The token record: prompt and sampled tokens of a rollout as immutable arrays."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

TOKEN_COLUMNS: dict[str, type[np.generic]] = {
    "ids": np.int32,
    "mask": np.bool_,
    "logprobs": np.float32,
    "versions": np.int32,
    "steps": np.int32,
}
"""Columns of a token record and their element types."""


@dataclass(frozen=True, slots=True, init=False, eq=False)
class TokenRecord:
    """Prompt and sampled token ids of a whole trajectory; all arrays share length T.

    The arrays are read-only. Records are equal when all columns are equal bit for bit.

    Args:
        ids: token ids, as any sequence or array.
        mask: sampled tokens; none by default.
        logprobs: 0.0 by default.
        versions: 0 for sampled tokens and -1 for the others by default.
        steps: -1 before the first sampled token and 0 from there on by default.

    Raises:
        ValueError: the columns differ in length, or a value does not fit its column.
    """

    ids: NDArray[np.int32]
    mask: NDArray[np.bool_]
    """True where the policy sampled the token, False for prompt, observation and template tokens."""
    logprobs: NDArray[np.float32]
    """Log-probability under the sampling distribution (after temperature); 0.0 where mask is False."""
    versions: NDArray[np.int32]
    """Policy version that sampled the token; -1 where mask is False."""
    steps: NDArray[np.int32]
    """Index of the step the token belongs to; -1 for the initial prompt of every sample."""

    def __init__(
        self,
        ids: ArrayLike = (),
        mask: ArrayLike | None = None,
        logprobs: ArrayLike | None = None,
        versions: ArrayLike | None = None,
        steps: ArrayLike | None = None,
    ) -> None:
        columns = {"ids": _column("ids", ids)}
        length = len(columns["ids"])
        columns["mask"] = _column("mask", np.zeros(length, np.bool_) if mask is None else mask)
        blank = columns["mask"].astype(np.int32)
        columns["logprobs"] = _column("logprobs", np.zeros(length) if logprobs is None else logprobs)
        columns["versions"] = _column("versions", blank - 1 if versions is None else versions)
        columns["steps"] = _column("steps", np.maximum.accumulate(blank) - 1 if steps is None else steps)
        if len({len(column) for column in columns.values()}) > 1:
            lengths = ", ".join(f"{name} {len(column)}" for name, column in columns.items())
            raise ValueError(f"a token record's columns differ in length ({lengths}); expected equal lengths")
        for name, column in columns.items():
            object.__setattr__(self, name, column)

    def __len__(self) -> int:
        return len(self.ids)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TokenRecord):
            return NotImplemented
        return len(self) == len(other) and all(
            getattr(self, name).tobytes() == getattr(other, name).tobytes() for name in TOKEN_COLUMNS
        )

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return TokenRecord, tuple(getattr(self, name) for name in TOKEN_COLUMNS)

    @property
    def starts(self) -> NDArray[np.intp]:
        """Return the start positions of the samples.

        There is one sample, the whole record, unless the conversation was rendered anew: a fork.
        """
        prompt = self.steps < 0
        return (
            np.flatnonzero(prompt & ~np.concatenate(([False], prompt[:-1])))
            if len(self)
            else np.empty(0, np.intp)
        )

    def samples(self) -> list[TokenRecord]:
        """Return the record split into its samples; empty for an empty record."""
        bounds = [*self.starts.tolist(), len(self)]
        if len(bounds) <= 2:
            return [self] if len(self) else []
        return [
            TokenRecord(*(getattr(self, name)[start:end] for name in TOKEN_COLUMNS))
            for start, end in pairwise(bounds)
        ]

    @property
    def num_sampled(self) -> int:
        """Return the number of sampled tokens."""
        return int(np.count_nonzero(self.mask))


def _column(name: str, values: ArrayLike) -> NDArray[Any]:
    """Return the values as a read-only array of the column's type; a fitting array is not copied."""
    dtype = TOKEN_COLUMNS[name]
    array = np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"the token column {name} has {array.ndim} dimensions; expected 1")
    if array.dtype != dtype:
        array = _converted(name, array, dtype)
    if array.flags.writeable:
        array = array.copy()
        array.flags.writeable = False
    return array


def _converted(name: str, array: NDArray[Any], dtype: type[np.generic]) -> NDArray[Any]:
    if not array.size:
        return np.empty(0, dtype)
    kinds = "biuf" if dtype is np.float32 else "biu"
    if array.dtype.kind not in kinds:
        raise ValueError(f"the token column {name} holds {array.dtype}; expected {np.dtype(dtype)}")
    if dtype is np.float32:
        with np.errstate(over="ignore"):
            rounded = array.astype(np.float32)
        if (overflowed := np.isinf(rounded) & np.isfinite(array)).any():
            raise ValueError(f"the token column {name} holds {array[overflowed][0]}; expected float32 values")
        return rounded
    least, most = (0, 1) if dtype is np.bool_ else (np.iinfo(np.int32).min, np.iinfo(np.int32).max)
    if array.min() < least or array.max() > most:
        raise ValueError(
            f"the token column {name} holds {array.min()} to {array.max()}; expected {least} to {most}"
        )
    return array.astype(dtype)
