"""Events about the order in which a training run collects and trains on groups, and its timeline.

Together with ``trajectory_finished`` they allow a schedule other than ``sync`` to be repeated: the same
groups, in the same order, produce the same weights.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from engine.events.record import Int, Record, RunEvent

LaneName = Literal["engines", "trainer", "place", "sandbox", "grading"]


class GroupAdmitted(RunEvent):
    """The rollouts of a group may begin; once per group, in the order of admission."""

    type: Literal["group_admitted"] = "group_admitted"
    iteration: Int = Field(ge=0)
    """Iteration of the group's task; a later or an earlier iteration may train on the group."""
    task_id: str = Field(min_length=1, max_length=64)
    updates: Int = Field(ge=0)
    """Number of updates made before."""
    replaces: str | None = Field(default=None, max_length=64)
    """Task of the same iteration whose group it replaces for lack of a learning signal; None where it
    replaces none."""


class SelectedGroup(Record):
    """A group of a batch, with its siblings."""

    iteration: Int = Field(ge=0)
    """Iteration in the keys of its trajectories."""
    task_id: str = Field(min_length=1, max_length=64)
    updates: Int = Field(ge=0)
    """Number of updates made before the group was admitted."""
    indices: list[Int]
    """Indices of the siblings, including those lost to infrastructure or cancelled at a deadline."""


class BatchSelected(RunEvent):
    """The groups of an update were chosen; recorded before it begins."""

    type: Literal["batch_selected"] = "batch_selected"
    iteration: Int = Field(ge=0)
    """Iteration that trains on them."""
    policy_version: Int = Field(ge=0)
    """Version of the weights before the update."""
    groups: list[SelectedGroup]
    """In the order in which the update takes them."""
    discarded: list[SelectedGroup] = Field(default_factory=list)
    """Groups without a learning signal (``algorithm.dynamic_sampling``): those replaced since the last batch,
    then those not replaced. The update does not use them."""


class CostliestRollout(Record):
    """Training rollout that accounts for most of a lane's time."""

    iteration: Int = Field(ge=0)
    """Iteration in its key."""
    task_id: str = Field(min_length=1, max_length=64)
    index: Int = Field(ge=0)
    start: float = Field(ge=0)
    """Start of its time in the lane, seconds since the timeline's start."""
    end: float = Field(ge=0)
    """End of its time in the lane, seconds since the timeline's start."""
    seconds: float = Field(ge=0)
    """Duration of its time in the lane."""


class TimelineLane(Record):
    """One kind of work or wait.

    ``engines``: requests were in flight. ``trainer``: the update ran; its costliest rollout is the one of the
    batch that ended last, for which the trainer waited. ``place``, ``sandbox``, ``grading``: rollouts waited
    for a place among the active ones, for their sandbox, for their grade (its tests included).
    """

    name: LaneName
    spans: list[tuple[float, float]] = Field(max_length=64)
    """Intervals in which at least one rollout was in the lane, seconds since the timeline's start; the
    shortest gaps are closed where there are too many."""
    seconds: float = Field(ge=0)
    """Length of all intervals, before gaps were closed."""
    rollout_seconds: float = Field(ge=0)
    """Sum over rollouts of their time in the lane."""
    costliest: CostliestRollout | None = None


class Timeline(Record):
    """Wall time of an iteration from its safe point to the end of its update."""

    seconds: float = Field(ge=0)
    lanes: list[TimelineLane] = Field(max_length=8)
