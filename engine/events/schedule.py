"""Events about the order in which a training run collects and trains on groups.

Together with ``trajectory_finished`` they are the record from which a schedule other than ``sync`` is
repeated: the same groups, in the same order, give the same weights.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from engine.events.record import Record, RunEvent


class GroupAdmitted(RunEvent):
    """The rollouts of a group may begin; once per group, in the order of admission."""

    type: Literal["group_admitted"] = "group_admitted"
    iteration: int = Field(ge=0)
    """Iteration whose tasks the group's is one of; a later one may train on it, or an earlier one."""
    task_id: str = Field(min_length=1, max_length=64)
    updates: int = Field(ge=0)
    """Number of updates made before."""


class SelectedGroup(Record):
    """A group of a batch, and the siblings that it has."""

    iteration: int = Field(ge=0)
    """Iteration in the keys of its trajectories."""
    task_id: str = Field(min_length=1, max_length=64)
    updates: int = Field(ge=0)
    """Number of updates made before the group was admitted."""
    indices: list[int]
    """Siblings, those that infrastructure lost or a deadline cancelled included."""


class BatchSelected(RunEvent):
    """The groups of an update were chosen; recorded before it begins."""

    type: Literal["batch_selected"] = "batch_selected"
    iteration: int = Field(ge=0)
    """Iteration that trains on them."""
    policy_version: int = Field(ge=0)
    """Version of the weights before the update."""
    groups: list[SelectedGroup]
    """In the order in which the update takes them."""
