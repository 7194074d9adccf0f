"""Time strips: one per iteration, with a lane for engines, trainer and every kind of wait.

To add a lane: its name in ``engine.events.schedule`` and its words in ``LANES``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.events.schedule import CostliestRollout, LaneName, Timeline, TimelineLane
from webapp.core.contexts.frame import iteration_url, trajectory_url
from webapp.core.contexts.numbers import whole
from webapp.core.selectors import Page, map_page
from webapp.runs.models.iterations import Iteration
from webapp.runs.selectors import timelines as reads

WIDTH = 1000
_MIN_WIDTH = 2.0
_CHARS = 40


@dataclass(frozen=True, slots=True)
class _Words:
    label: str
    explanation: str
    cause: str
    """Relation of the costliest rollout to the lane."""


LANES: Mapping[LaneName, _Words] = {
    "engines": _Words("Engines busy", "requests were in flight", "sampled longest"),
    "trainer": _Words("Trainer busy", "the update ran; otherwise it waited for its batch", "ended last"),
    "place": _Words("Slot wait", "rollouts waited for a free rollout slot", "waited longest"),
    "sandbox": _Words("Sandbox wait", "rollouts waited for image and sandbox", "waited longest"),
    "grading": _Words("Grading wait", "rollouts waited for grading, tests included", "waited longest"),
}


@dataclass(frozen=True, slots=True)
class Bar:
    """Interval of a lane, in units of the drawing."""

    x: float
    width: float


@dataclass(frozen=True, slots=True)
class Cause:
    """Rollout that cost most of a lane's time."""

    name: str
    """Task and index."""
    url: str
    relation: str
    seconds: float
    bar: Bar


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One lane of a strip."""

    name: LaneName
    label: str
    explanation: str
    bars: tuple[Bar, ...]
    seconds: float
    share: float
    """Share of the iteration's wall time."""
    rollouts: float | None
    """Mean number of rollouts in the lane; None for the trainer."""
    cause: Cause | None

    @property
    def text(self) -> str:
        """Return the bars as characters."""
        places = [_CHARS * edge / WIDTH for bar in self.bars for edge in (bar.x, bar.x + bar.width)]
        spans = list(zip(places[::2], places[1::2], strict=True))
        return "".join(
            "█" if any(start < place + 1 and end > place for start, end in spans) else "·"
            for place in range(_CHARS)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """Timeline of one iteration."""

    index: int
    url: str
    seconds: float
    lanes: tuple[Lane, ...]

    @property
    def straggler(self) -> Cause | None:
        """Return the rollout of the batch that ended last."""
        return next((lane.cause for lane in self.lanes if lane.name == "trainer"), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelinePanel:
    """The strips of a run, newest iteration first."""

    page: Page[Strip]


def build_timeline(run_id: int, params: Mapping[str, str]) -> TimelinePanel:
    """Return one page of strips."""
    page = reads.list_timelines(run_id, number=whole(params.get("page", "")) or 1)
    names = _names(run_id, page.rows)
    return TimelinePanel(page=map_page(page, lambda iteration: _strip(iteration, names)))


def build_strip(iteration: Iteration | None) -> Strip | None:
    """Return the strip of one iteration; None where it has no timeline."""
    if iteration is None or iteration.timeline is None:
        return None
    return _strip(iteration, _names(iteration.run_id, [iteration]))


def _names(run_id: int, iterations: Sequence[Iteration]) -> dict[str, str]:
    lanes = [lane for iteration in iterations if iteration.timeline for lane in iteration.timeline["lanes"]]
    return reads.task_names(run_id, {lane["costliest"]["task_id"] for lane in lanes if lane["costliest"]})


def _strip(iteration: Iteration, names: Mapping[str, str]) -> Strip:
    timeline = Timeline.model_validate(iteration.timeline)
    return Strip(
        index=iteration.index,
        url=iteration_url(iteration.run_id, "train", iteration.index),
        seconds=timeline.seconds,
        lanes=tuple(_lane(iteration.run_id, lane, timeline.seconds, names) for lane in timeline.lanes),
    )


def _lane(run_id: int, lane: TimelineLane, total: float, names: Mapping[str, str]) -> Lane:
    words, costliest = LANES[lane.name], lane.costliest
    return Lane(
        name=lane.name,
        label=words.label,
        explanation=words.explanation,
        bars=tuple(_bar(start, end, total) for start, end in lane.spans),
        seconds=lane.seconds,
        share=lane.seconds / total if total else 0.0,
        rollouts=None if lane.name == "trainer" else lane.rollout_seconds / (total or 1.0),
        cause=_cause(run_id, costliest, words.cause, total, names) if costliest is not None else None,
    )


def _cause(
    run_id: int, rollout: CostliestRollout, relation: str, total: float, names: Mapping[str, str]
) -> Cause:
    return Cause(
        name=f"{names.get(rollout.task_id, rollout.task_id)} #{rollout.index}",
        url=trajectory_url(run_id, "train", rollout.iteration, rollout.task_id, rollout.index),
        relation=relation,
        seconds=rollout.seconds,
        bar=_bar(rollout.start, rollout.end, total),
    )


def _bar(start: float, end: float, total: float) -> Bar:
    """Return an interval's bar, wide enough to be seen and inside the drawing."""
    scale = WIDTH / total if total else 0.0
    width = min(float(WIDTH), max(_MIN_WIDTH, (end - start) * scale))
    return Bar(round(min(max(0.0, start * scale), WIDTH - width), 1), round(width, 1))
