"""Records about the curation of a dataset."""

from __future__ import annotations

from typing import Annotated

from pydantic import AliasChoices, Field, FiniteFloat

from engine.events.record import Record

Count = Annotated[int, Field(ge=0, lt=2**63)]
"""A number of things; not ``BigInt`` with a bound, whose own lower bound would replace it."""


class FunnelStage(Record):
    """A stage of the funnel from commits, faults or weak tasks to tasks.

    The items are those that the first stage is named after.
    """

    stage: str = Field(max_length=64)
    reached: Count = Field(validation_alias=AliasChoices("reached", "commits"))
    """Items that reached it; ``commits`` in records of earlier versions."""
    lost: dict[str, Count] = Field(default_factory=dict, max_length=64)
    """Reason → items that did not reach it."""
    written: Count = 0
    """Commits that reached it with tests by a model, at the stages that count them."""


class LostItem(Record):
    """A commit or fault that became no task, or a task that was not hardened, as an example of its reason."""

    origin: str = Field(default="", max_length=300, validation_alias=AliasChoices("origin", "repository"))
    """Repository of a commit, or source of a fault; empty for a task. ``repository`` in earlier versions."""
    item: str = Field(max_length=300, validation_alias=AliasChoices("item", "commit", "task"))
    """Hash of a commit, ``PATH:LINE FUNCTION`` of a fault, or instance id of a task. ``commit`` or ``task``
    in earlier versions."""
    detail: str = Field(default="", max_length=500)


class CurationFunnel(Record):
    """State of a curation, over all attempts of the run."""

    funnel: list[FunnelStage] = Field(max_length=32)
    examples: dict[str, list[LostItem]] = Field(default_factory=dict, max_length=64)
    """Reason → some of its items."""
    skipped: dict[str, str] = Field(default_factory=dict)
    """Repository or source that cannot be used → reason."""
    tasks: Count
    trial_seconds: FiniteFloat = Field(ge=0)
    """Duration of the trials of its items, whichever curation ran them."""
    disk_bytes: Count
    """Size of the images and environments of its tasks."""
