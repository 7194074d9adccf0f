"""What every record of a run's event stream has in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Record(BaseModel):
    """Plain data that is refused with a field nobody knows, and never changes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class RunEvent(Record):
    """One event of a run; a subclass names its ``type``."""

    seq: int = Field(ge=1)
    epoch: int = Field(ge=1)
    time: float
    """Unix time, seconds."""
