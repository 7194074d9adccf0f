"""Byte spans of rollouts' events in a spool: finished rollouts, and recorded steps of those in flight."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple, Self

from engine.config.rollout import RolloutConfig
from engine.events.delivery.spool import read_lines
from engine.orchestrator.collection.ledger import type_of
from engine.rollout.recorded import RecordedTurns, Span, read_turns
from engine.rollout.summary import RolloutSummary
from engine.types import RolloutKey, TerminationReason

_REF = re.compile(rb'"ref":(\{"iteration":[^{}]*\})(?:,"index":([0-9]+))?(?:,"replayed":(true))?')
_HEAD_BYTES = 512
"""Length of a line's prefix that contains the rollout's key and step."""
_KINDS = frozenset({"trajectory_started", "step_finished", "trajectory_finished"})


class RolloutEvent(NamedTuple):
    """Event of a rollout, read without parsing all of its line."""

    key: RolloutKey
    step: int
    """Index of a finished step; 0 in other events."""
    is_replayed: bool


@dataclass(slots=True)
class RolloutLines:
    """Byte spans of one rollout's events."""

    steps: list[Span] = field(default_factory=list)
    """Last record of each step. A newly sampled step discards the older records after it."""
    finished: Span | None = None
    """None while the rollout is in flight, or if its attempt was stopped."""
    is_lost: bool = False
    is_solved: bool = False
    is_cut_short: bool = False
    cancelled: str = ""
    """Reason of its cancellation; empty where it was not cancelled."""

    def add(self, kind: str, line: bytes, span: Span, event: RolloutEvent) -> None:
        """Add an event.

        A start clears the steps only of a rollout that had ended, i.e. was lost. Otherwise they are kept:
        after a kill during their replay, the next attempt still needs the rest.
        """
        if kind == "trajectory_started":
            if self.finished is not None:
                self.steps.clear()
            self.finished, self.cancelled = None, ""
            self.is_lost = self.is_solved = self.is_cut_short = False
        elif kind == "step_finished":
            if not event.is_replayed:
                del self.steps[event.step :]
            self.steps[event.step : event.step + 1] = [span]
        else:
            self._finish(line, span)

    def _finish(self, line: bytes, span: Span) -> None:
        summary = RolloutSummary.from_event(line)
        if summary.termination is TerminationReason.CANCELLED:
            self.cancelled = json.loads(line)["error"]
            return
        del self.steps[summary.num_steps :]
        self.finished, self.is_lost, self.is_solved = span, summary.is_lost, summary.is_solved
        self.is_cut_short = summary.is_cut_short


def rollout_event(kind: str, line: bytes) -> RolloutEvent | None:
    """Return the rollout event of a line; None for other events."""
    if kind not in _KINDS or (match := _REF.search(line[:_HEAD_BYTES])) is None:
        return None
    return RolloutEvent(RolloutKey(**json.loads(match[1])), int(match[2] or 0), match[3] is not None)


async def in_flight(config: RolloutConfig, spool: Path) -> RecordedRollouts | None:
    """Return the recorded steps of rollouts in flight; None if the configuration restarts them."""
    if config.resume_in_flight == "anew":
        return None
    return await asyncio.to_thread(RecordedRollouts.read, spool)


class RecordedRollouts:
    """Recorded steps of the rollouts that were in flight when the last attempt ended."""

    def __init__(self, spool: Path) -> None:
        self._spool = spool
        self._lines: dict[RolloutKey, RolloutLines] = {}

    @classmethod
    def read(cls, spool: Path) -> Self:
        """Read a spool; a missing one is an empty record."""
        record, start = cls(spool), 0
        for line in read_lines(spool):
            kind = type_of(line.data)
            if (event := rollout_event(kind, line.data)) is not None:
                lines = record._lines.setdefault(event.key, RolloutLines())
                lines.add(kind, line.data, Span(start, line.end), event)
                if lines.finished is not None:
                    del record._lines[event.key]
            start = line.end
        return record

    def turns(self, key: RolloutKey) -> RecordedTurns | None:
        """Return a reader of a rollout's recorded turns; None where there are none."""
        lines = self._lines.get(key)
        if lines is None or not lines.steps:
            return None
        return partial(read_turns, self._spool, tuple(lines.steps))
