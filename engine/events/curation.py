"""Records about the curation of a dataset."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, FiniteFloat

from engine.events.record import Record

Count = Annotated[int, Field(ge=0, lt=2**63)]
"""A number of things; not ``BigInt`` with a bound, whose own lower bound would replace it."""


class FunnelStage(Record):
    """A stage of the funnel from commits to tasks."""

    stage: str = Field(max_length=64)
    commits: Count
    """Commits that reached it."""
    lost: dict[str, Count] = Field(default_factory=dict, max_length=64)
    """Reason → commits that did not reach it."""
    written: Count = 0
    """Commits that reached it with tests by a model, at the stages that count them."""


class LostCommit(Record):
    """A commit that became no task, as an example of its reason."""

    repository: str = Field(max_length=300)
    commit: str = Field(max_length=64)
    detail: str = Field(default="", max_length=500)


class CommitFunnel(Record):
    """State of a curation from commits, over all attempts of the run."""

    funnel: list[FunnelStage] = Field(max_length=32)
    examples: dict[str, list[LostCommit]] = Field(default_factory=dict, max_length=64)
    """Reason → some of its commits."""
    skipped: dict[str, str] = Field(default_factory=dict)
    """Repository that cannot be used → reason."""
    tasks: Count
    trial_seconds: FiniteFloat = Field(ge=0)
    """Duration of the trials of its commits, whichever curation ran them."""
    disk_bytes: Count
    """Size of the images and environments of its tasks."""
