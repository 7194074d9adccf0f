"""Timeline of an iteration from the phases of its rollouts (``engine.events.schedule``).

A lane counts the rollouts in a phase: an interval begins with the first and ends with the last, so that
a change of phase takes constant time. One record per rollout and lane is kept until the end of the
iteration.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from engine.events.schedule import CostliestRollout, LaneName, Timeline, TimelineLane
from engine.types import RolloutKey, RolloutPhase

LANES: Mapping[RolloutPhase, LaneName] = {
    RolloutPhase.MODEL: "engines",
    RolloutPhase.PLACE: "place",
    RolloutPhase.SANDBOX: "sandbox",
    RolloutPhase.GRADING: "grading",
}
MAX_SPANS = 48
SHORTEST_S = 0.001
"""Minimum length of recorded spans and stays, seconds."""
Span = tuple[float, float]


@dataclass(slots=True)
class _Stay:
    """Time of one rollout in a lane."""

    start: float
    end: float
    seconds: float


@dataclass(slots=True)
class _Lane:
    since: dict[RolloutKey, float] = field(default_factory=dict)
    """Rollouts in the lane, and when they entered it."""
    opened: float = 0.0
    spans: list[Span] = field(default_factory=list)
    stays: dict[RolloutKey, _Stay] = field(default_factory=dict)

    def enter(self, key: RolloutKey, now: float) -> None:
        if not self.since:
            self.opened = now
        self.since[key] = now

    def leave(self, key: RolloutKey, now: float) -> None:
        self._stay(key, self.since.pop(key), now)
        if not self.since:
            self.spans.append((self.opened, now))

    def restart(self, now: float) -> None:
        """Discard the time before ``now``."""
        self.opened, self.spans, self.stays = now, [], {}
        self.since = dict.fromkeys(self.since, now)

    def settle(self, now: float) -> None:
        """Count the time of rollouts that are still in the lane."""
        for key, since in self.since.items():
            self._stay(key, since, now)
        if self.since:
            self.spans.append((self.opened, now))
        self.since = dict.fromkeys(self.since, now)
        self.opened = now

    def _stay(self, key: RolloutKey, since: float, now: float) -> None:
        stay = self.stays.setdefault(key, _Stay(since, now, 0.0))
        stay.end = now
        stay.seconds += now - since


class PhaseLanes:
    """Phases of a training run's rollouts, summed up per iteration.

    Args:
        clock: monotonic time, seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start = clock()
        self._lanes = {name: _Lane() for name in LANES.values()}
        self._phases: dict[RolloutKey, RolloutPhase] = {}
        self._ended: dict[RolloutKey, float] = {}
        """Rollouts that ended since the start → time of their end."""

    def enter(self, key: RolloutKey, phase: RolloutPhase | None) -> None:
        """Record the start of a rollout's phase, or the rollout's end (None)."""
        now = self._clock()
        before = self._phases.pop(key, None)
        if before is not None and before in LANES:
            self._lanes[LANES[before]].leave(key, now)
        if phase is None:
            self._ended[key] = now
            return
        self._phases[key] = phase
        if phase in LANES:
            self._lanes[LANES[phase]].enter(key, now)

    def begin(self) -> None:
        """Start the timeline of an iteration."""
        self._start, self._ended = self._clock(), {}
        for lane in self._lanes.values():
            lane.restart(self._start)

    def timeline(self, batch: Iterable[RolloutKey], *, collected: float) -> Timeline:
        """Return the timeline from the start until now.

        Args:
            batch: rollouts that the trainer waited for.
            collected: moment at which the update began.
        """
        now = self._clock()
        for lane in self._lanes.values():
            lane.settle(now)
        records = {name: self._record(name, lane) for name, lane in self._lanes.items()}
        trainer = self._trainer(batch, collected, now)
        return Timeline(
            seconds=round(now - self._start, 3), lanes=[records.pop("engines"), trainer, *records.values()]
        )

    def _record(self, name: LaneName, lane: _Lane) -> TimelineLane:
        spans = [span for span in lane.spans if span[1] - span[0] >= SHORTEST_S]
        stays = {key: stay for key, stay in lane.stays.items() if stay.seconds >= SHORTEST_S}
        key = max(stays, key=lambda rollout: stays[rollout].seconds, default=None)
        return TimelineLane(
            name=name,
            spans=[self._relative(span) for span in merged(spans, at_most=MAX_SPANS)],
            seconds=round(sum(end - start for start, end in spans), 3),
            rollout_seconds=round(sum(stay.seconds for stay in stays.values()), 3),
            costliest=None if key is None else self._costliest(key, stays[key]),
        )

    def _trainer(self, batch: Iterable[RolloutKey], collected: float, now: float) -> TimelineLane:
        ended = [key for key in batch if key in self._ended]
        last = max(ended, key=self._ended.__getitem__, default=None)
        waited = collected - self._start
        return TimelineLane(
            name="trainer",
            spans=[self._relative((collected, now))],
            seconds=round(now - collected, 3),
            rollout_seconds=0.0,
            costliest=None
            if last is None
            else self._costliest(last, _Stay(self._start, self._ended[last], waited)),
        )

    def _costliest(self, key: RolloutKey, stay: _Stay) -> CostliestRollout:
        start, end = self._relative((stay.start, stay.end))
        return CostliestRollout(
            iteration=key.iteration,
            task_id=key.task_id,
            index=key.index,
            start=start,
            end=end,
            seconds=round(stay.seconds, 3),
        )

    def _relative(self, span: Span) -> Span:
        return round(span[0] - self._start, 3), round(span[1] - self._start, 3)


def merged(spans: list[Span], *, at_most: int) -> list[Span]:
    """Merge ordered spans across the shortest gaps until at most ``at_most`` are left."""
    gaps = sorted(range(1, len(spans)), key=lambda index: spans[index][0] - spans[index - 1][1], reverse=True)
    result: list[Span] = []
    kept = set(gaps[: at_most - 1])
    for index, span in enumerate(spans):
        if index == 0 or index in kept:
            result.append(span)
        else:
            result[-1] = (result[-1][0], span[1])
    return result
