"""Areas of a run that a batch of events changed, to select the pages to render again.

A step changes only the pages of its rollout, its group and its iteration: with many concurrent rollouts most
batches affect few of the open pages. Event types without a case here change every page of the run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from engine.events import types as e
from engine.events.engines import EnginesReported
from engine.events.sandboxes import PoolStatus, SandboxesChanged
from engine.events.system import SystemSampled
from webapp.runs.models.runs import Run

MAX_NAMED = 800
"""Maximum number of groups and rollouts in a notification; a batch with more changes every page."""


@dataclass(slots=True)
class Changes:
    """Changed areas of a run, and changed groups and rollouts."""

    experiment: int | None = None
    """Experiment of the run."""
    areas: set[str] = field(default_factory=set)
    """``run`` (any page of the run), ``progress``, ``rollouts``, ``pool``, ``system``, ``steps``,
    ``scans``, ``labels``; the last two by other services."""
    groups: set[tuple[str, int, str]] = field(default_factory=set)
    """Groups (phase, iteration, task) whose rollouts, advantages or number of siblings changed."""
    rollouts: set[tuple[str, int, str, int]] = field(default_factory=set)
    """Rollouts with new steps or an end."""

    def message(self, *, after: int) -> dict[str, Any]:
        """Return the changes since event ``after`` as part of a notification."""
        areas, groups, rollouts = self.areas, self.groups, self.rollouts
        if len(groups) + len(rollouts) > MAX_NAMED:
            areas, groups, rollouts = {"run"}, set(), set()
        return {
            "after": after,
            "experiment": self.experiment,
            "areas": sorted(areas),
            "groups": [list(key) for key in groups],
            "rollouts": [list(key) for key in rollouts],
        }


def changes_of(run: Run, events: Iterable[e.AnyEvent]) -> Changes:
    """Return the changes made by the events of one batch."""
    changes = Changes(experiment=run.experiment_id)
    for event in events:
        match event:
            case e.StepFinished(ref=ref):
                # The run's figures include the costs of unfinished rollouts.
                changes.areas.add("rollouts" if run.uses_endpoint or event.cost is not None else "steps")
                changes.rollouts.add((ref.phase, ref.iteration, ref.task_id, ref.index))
            case e.TrajectoryStarted(ref=ref):
                changes.areas.add("rollouts")
                changes.groups.add((ref.phase, ref.iteration, ref.task_id))
            case e.TrajectoryFinished(ref=ref):
                changes.areas.add("rollouts")
                changes.rollouts.add((ref.phase, ref.iteration, ref.task_id, ref.index))
            case e.GroupFinished():
                changes.areas.add("rollouts")
                changes.groups.add((event.phase, event.iteration, event.task_id))
            case SandboxesChanged() | PoolStatus() | EnginesReported():
                changes.areas.add("pool")
            case SystemSampled():
                changes.areas.add("system")
            case e.RunProgress():
                changes.areas.add("progress")
            case _:
                changes.areas.add("run")
    return changes
