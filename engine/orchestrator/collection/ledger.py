"""Finished rollouts of a run, read from its spool.

The spool is the only record of finished rollouts: events are written whole or not at all, so that no kill
can separate a rollout from its record.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.events.delivery.spool import read_lines
from engine.orchestrator.watch.event_observer import TRAIN_PHASE
from engine.orchestrator.watch.metrics import RolloutMetrics
from engine.rollout.summary import RolloutSummary
from engine.types import RolloutKey, TerminationReason

Part = tuple[int, str]
"""Iteration and phase of rollouts."""
_TYPE = re.compile(rb'"type":"([a-z_]+)"')
_EPOCH = re.compile(rb'"epoch":([0-9]+)')
_HEAD_BYTES = 160
"""Length of a line's prefix that contains the event's type and attempt."""
_TRAINED, _REF_BYTES = f'"phase":"{TRAIN_PHASE}"'.encode(), 400
"""Marker of a training rollout's line, and length of a line's prefix that contains the rollout's key."""


def type_of(line: bytes) -> str:
    """Return the type of a recorded event without parsing all of it."""
    match = _TYPE.search(line[:_HEAD_BYTES])
    return match[1].decode() if match else ""


def epoch_of(line: bytes) -> int | None:
    """Return the attempt that recorded an event without parsing all of it; None if it has none."""
    match = _EPOCH.search(line[:_HEAD_BYTES])
    return int(match[1]) if match else None


def is_kept(part: Part, started: Mapping[str, Any]) -> bool:
    """Return whether an attempt keeps the earlier attempts' rollouts of an iteration and phase."""
    if started.get("rollouts_kept") is not None:
        return True
    iteration, phase = part
    resumed_from = started.get("resumed_from")
    if resumed_from is None:
        return False
    return bool(iteration < resumed_from if phase == TRAIN_PHASE else iteration <= resumed_from)


class Ledger:
    """Metrics and identities of finished rollouts, stored as a few numbers per task.

    A rollout that infrastructure lost counts as finished only until it is repeated.
    """

    def __init__(self) -> None:
        self.metrics = RolloutMetrics()
        """Metrics of the rollouts that infrastructure did not lose."""
        self.lost: dict[RolloutKey, RolloutSummary] = {}
        """Rollouts that infrastructure lost and that were not repeated."""
        self.cost: float | None = None
        """US dollars of all rollouts, lost and repeated ones included; None where no price is known."""
        self.is_reported = False
        """Whether the result of the rollouts' evaluation is recorded."""
        self._finished: dict[str, int] = {}
        """Task → bit mask of the indices of finished rollouts."""

    @classmethod
    def read(cls, spool: Path, *, part: Part | None = None) -> Ledger:
        """Read the finished rollouts of all attempts since the last one that started over.

        Rollouts that were lost or cancelled are left out: the next attempt repeats them.

        Args:
            spool: the run's spool.
            part: iteration and phase of the rollouts; None reads all.
        """
        ledger = cls()
        for line in read_lines(spool):
            match type_of(line.data):
                case "trajectory_finished":
                    rollout = RolloutSummary.from_event(line.data)
                    if part is None or part == (rollout.key.iteration, rollout.key.phase):
                        ledger.add(rollout)
                case "run_started" if json.loads(line.data).get("rollouts_kept") is None:
                    ledger = cls()
        ledger.lost.clear()
        return ledger

    @property
    def count(self) -> int:
        """Return the number of finished rollouts, lost ones included."""
        return self.metrics.count + len(self.lost)

    def add(self, rollout: RolloutSummary) -> None:
        """Add a finished rollout; a second record of one that was not lost is ignored."""
        if self.has(rollout.key):
            return
        if rollout.cost is not None:
            self.cost = (self.cost or 0.0) + rollout.cost
        if rollout.is_lost:
            if rollout.termination is not TerminationReason.CANCELLED:
                self.lost[rollout.key] = rollout
            return
        self.lost.pop(rollout.key, None)
        self._finished[rollout.key.task_id] = self._mask(rollout.key.task_id) | 1 << rollout.key.index
        self.metrics.add(rollout)

    def has(self, key: RolloutKey) -> bool:
        """Return whether a rollout is finished and was not lost."""
        return bool(self._mask(key.task_id) >> key.index & 1)

    def close(self) -> RolloutMetrics:
        """Count the lost rollouts as excluded; return the metrics of all."""
        for rollout in self.lost.values():
            self.metrics.add(rollout)
        return self.metrics

    def _mask(self, task_id: str) -> int:
        return self._finished.get(task_id, 0)


def read_evaluations(spool: Path) -> dict[Part, Ledger]:
    """Return the finished evaluation rollouts of a training run that its newest attempt keeps.

    Lost rollouts of evaluations without a recorded result are left out: the attempt repeats them.
    """
    ledgers: defaultdict[Part, Ledger] = defaultdict(Ledger)
    for line in read_lines(spool):
        match type_of(line.data):
            case "trajectory_finished" if _TRAINED not in line.data[:_REF_BYTES]:
                rollout = RolloutSummary.from_event(line.data)
                ledgers[rollout.key.iteration, rollout.key.phase].add(rollout)
            case "evaluation_finished":
                event = json.loads(line.data)
                ledgers[event["iteration"], f"eval:{event['name']}"].is_reported = True
            case "run_started":
                event = json.loads(line.data)
                for part in [part for part in ledgers if not is_kept(part, event)]:
                    del ledgers[part]
    for ledger in ledgers.values():
        if not ledger.is_reported:
            ledger.lost.clear()
    return dict(ledgers)
