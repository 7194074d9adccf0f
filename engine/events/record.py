"""Base classes of the records in a run's event stream."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Int = Annotated[int, Field(gt=-(2**31) - 1, lt=2**31)]
"""A 32-bit integer, as in a database column of four bytes; counts over a whole run are ``BigInt``.

The bounds are ``gt`` and ``lt``: a field's own ``ge`` and ``le`` add to them, an own ``gt`` would be ignored.
"""
BigInt = Annotated[int, Field(gt=-(2**63) - 1, lt=2**63)]
Time = Annotated[float, Field(ge=0, lt=datetime(9999, 1, 1, tzinfo=UTC).timestamp())]
"""Unix time, seconds."""


class Record(BaseModel):
    """Immutable plain data; unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class RunEvent(Record):
    """One event of a run; a subclass names its ``type``."""

    seq: BigInt = Field(ge=1)
    epoch: Int = Field(ge=1)
    time: Time
