"""Changes that a batch of events made, as far as pages differ in showing them.

A step changes the pages of its rollout, its group and its iteration, and no other: with many rollouts at
once most batches concern few of the open pages. An event type that is not named here changes every page of
the run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from engine.events import types as e
from engine.events.engines import EnginesReported
from engine.events.sandboxes import PoolStatus, SandboxesChanged
from webapp.runs.models.runs import Run

MAX_NAMED = 200
"""Largest number of groups and rollouts that are named; a batch about more of them changes every page."""


@dataclass(slots=True)
class Changes:
    """Areas of a run that changed, and the groups and rollouts among them."""

    areas: set[str] = field(default_factory=set)
    """``run``: anything; ``progress``, ``rollouts``, ``pool``: its figures; ``steps``."""
    groups: set[tuple[str, int, str]] = field(default_factory=set)
    """Groups (phase, iteration, task) whose rollouts, advantages or number of siblings changed."""
    rollouts: set[tuple[str, int, str, int]] = field(default_factory=set)
    """Rollouts with new steps or an end."""

    def message(self, *, after: int) -> dict[str, Any]:
        """Return the changes since event ``after`` as part of a notification."""
        if len(self.groups) + len(self.rollouts) > MAX_NAMED:
            return {"after": after, "areas": ["run"], "groups": [], "rollouts": []}
        return {
            "after": after,
            "areas": sorted(self.areas),
            "groups": [list(key) for key in self.groups],
            "rollouts": [list(key) for key in self.rollouts],
        }


def changes_of(run: Run, events: Iterable[e.AnyEvent]) -> Changes:
    """Return what the events of one batch changed."""
    found = Changes()
    for event in events:
        match event:
            case e.StepFinished(ref=ref):
                # Costs are summed over rollouts that are not finished, too.
                found.areas.add("rollouts" if run.uses_endpoint or event.cost is not None else "steps")
                found.rollouts.add((ref.phase, ref.iteration, ref.task_id, ref.index))
            case e.TrajectoryStarted(ref=ref):
                found.areas.add("rollouts")
                found.groups.add((ref.phase, ref.iteration, ref.task_id))
            case e.TrajectoryFinished(ref=ref):
                found.areas.add("rollouts")
                found.rollouts.add((ref.phase, ref.iteration, ref.task_id, ref.index))
            case e.GroupFinished():
                found.areas.add("rollouts")
                found.groups.add((event.phase, event.iteration, event.task_id))
            case SandboxesChanged() | PoolStatus() | EnginesReported():
                found.areas.add("pool")
            case e.RunProgress():
                found.areas.add("progress")
            case _:
                found.areas.add("run")
    return found
