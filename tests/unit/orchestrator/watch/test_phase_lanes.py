"""Timeline of an iteration: intervals, sums and the costliest rollouts."""

from __future__ import annotations

from engine.events.schedule import Timeline, TimelineLane
from engine.orchestrator.watch.phase_lanes import PhaseLanes
from engine.types import RolloutKey, RolloutPhase


class Clock:
    """Clock set by a test."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def key(index: int, iteration: int = 0) -> RolloutKey:
    return RolloutKey(iteration=iteration, phase="train", task_id="t", index=index)


def lane(timeline: Timeline, name: str) -> TimelineLane:
    return next(entry for entry in timeline.lanes if entry.name == name)


def at(clock: Clock, lanes: PhaseLanes, *changes: tuple[float, int, RolloutPhase | None]) -> None:
    for seconds, index, phase in changes:
        clock.now = 100.0 + seconds
        lanes.enter(key(index), phase)


def test_lanes_are_the_union_of_the_rollouts_phases() -> None:
    clock = Clock()
    lanes = PhaseLanes(clock)
    lanes.begin()
    at(
        clock,
        lanes,
        (0, 0, RolloutPhase.SANDBOX),
        (1, 1, RolloutPhase.SANDBOX),
        (2, 0, RolloutPhase.MODEL),
        (3, 0, RolloutPhase.TOOLS),
        (4, 1, RolloutPhase.MODEL),
        (5, 0, RolloutPhase.MODEL),
        (6, 0, RolloutPhase.GRADING),
        (7, 1, RolloutPhase.GRADING),
        (8, 0, None),
        (9, 1, None),
    )
    clock.now = 112.0
    timeline = lanes.timeline([key(0), key(1)], collected=109.5)
    assert timeline.seconds == 12
    assert [entry.name for entry in timeline.lanes] == ["engines", "trainer", "place", "sandbox", "grading"]
    engines, sandbox = lane(timeline, "engines"), lane(timeline, "sandbox")
    assert (engines.spans, engines.seconds, engines.rollout_seconds) == ([(2, 3), (4, 7)], 4, 5)
    assert (sandbox.spans, sandbox.rollout_seconds) == ([(0, 4)], 5)
    assert sandbox.costliest is not None
    assert (sandbox.costliest.index, sandbox.costliest.start, sandbox.costliest.end) == (1, 1, 4)
    assert lane(timeline, "grading").spans == [(6, 9)]
    assert (lane(timeline, "place").spans, lane(timeline, "place").costliest) == ([], None)
    trainer = lane(timeline, "trainer")
    assert trainer.spans == [(9.5, 12)]
    assert trainer.costliest is not None
    assert (trainer.costliest.index, trainer.costliest.seconds) == (1, 9.5)


def test_phases_across_the_end_of_an_iteration_are_split_between_timelines() -> None:
    clock = Clock()
    lanes = PhaseLanes(clock)
    lanes.begin()
    at(clock, lanes, (1, 0, RolloutPhase.GRADING))
    clock.now = 104.0
    first = lanes.timeline([], collected=102.0)
    lanes.begin()
    at(clock, lanes, (6, 0, None))
    clock.now = 110.0
    second = lanes.timeline([key(0)], collected=106.0)
    assert lane(first, "grading").spans == [(1, 4)]
    assert lane(second, "grading").spans == [(0, 2)]
    assert lane(second, "grading").rollout_seconds == 2
    assert lane(first, "trainer").costliest is None, "the trainer waited for no rollout"
    assert lane(second, "trainer").costliest is not None
