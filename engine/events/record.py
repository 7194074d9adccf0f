"""Base classes of the records in a run's event stream."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Record(BaseModel):
    """Immutable plain data; unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class RunEvent(Record):
    """One event of a run; a subclass names its ``type``."""

    seq: int = Field(ge=1)
    epoch: int = Field(ge=1)
    time: float
    """Unix time, seconds."""
