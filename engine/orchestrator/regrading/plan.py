"""Plan of a regrading: distinct patches of each row, and the trajectories that cannot be graded again.

Patches stay in the spools until they are graded: the plan has a few numbers for each trajectory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from engine.events.regrading import Obstacle
from engine.orchestrator.regrading.rows import GradableRow, Refusal, RowsOfRun
from engine.orchestrator.verification.stored_trajectories import StoredTrajectories, TrajectoryId
from engine.patches.sections import patch_hash
from engine.types import Verdict


@dataclass(frozen=True, slots=True)
class OriginalVerdict:
    """Result of a trajectory's own grading."""

    verdict: Verdict
    reward: float


@dataclass(frozen=True, slots=True)
class DistinctPatch:
    """One patch of a row, with the trajectories that submitted it."""

    row: GradableRow
    source: StoredTrajectories
    offset: int
    """Byte offset of the first trajectory's terminal record in the spool of ``source``."""
    members: list[TrajectoryId] = field(default_factory=list)

    def read(self) -> str:
        """Return the patch."""
        return self.source.patch_at(self.offset)


@dataclass(frozen=True, slots=True)
class Plan:
    """Work of a regrading, over all attempts of the run."""

    patches: list[DistinctPatch]
    """In the order in which the first trajectory of each finished."""
    refused: dict[TrajectoryId, Refusal]
    originals: dict[TrajectoryId, OriginalVerdict]
    """Every trajectory of the runs, in order."""


def make_plan(sources: Iterable[tuple[StoredTrajectories, RowsOfRun]], *, check: Callable[[], None]) -> Plan:
    """Read the trajectories of runs and find the row of each.

    Args:
        sources: the runs, with the rows for their trajectories.
        check: called for each trajectory; raises if the attempt must end.
    """
    patches: dict[tuple[str, str], DistinctPatch] = {}
    plan = Plan([], {}, {})
    for source, rows in sources:
        for identity, line in source.terminal_records():
            check()
            event = json.loads(line.data)
            if event["verdict"] is None:  # another program's rollout, with a reward alone
                continue
            original = OriginalVerdict(Verdict(event["verdict"]), float(event["reward"]))
            plan.originals[identity] = original
            row = rows.find(identity.key.task_id)
            if not isinstance(row, Refusal) and not event["patch"]:
                row = _unless_made(row, original)
            if isinstance(row, Refusal):
                plan.refused[identity] = row
                continue
            start = line.end - len(line.data) - 1
            key = row.content, patch_hash(event["patch"])
            patches.setdefault(key, DistinctPatch(row, source, start)).members.append(identity)
    plan.patches.extend(patches.values())
    return plan


def _unless_made(row: GradableRow, original: OriginalVerdict) -> GradableRow | Refusal:
    """Return the row for an empty patch: of an agent without changes, not of changes that have no patch."""
    if original.verdict is not Verdict.PATCH_FAILED:
        return row
    return Refusal(obstacle=Obstacle.NO_PATCH, detail="the agent's changes could not be made into a patch")
