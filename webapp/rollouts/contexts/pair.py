"""Two rollouts side by side, their steps aligned by equal actions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from urllib.parse import urlencode

from django.urls import reverse

from webapp.core.contexts.frame import (
    Crumb,
    group_crumbs,
    phase_label,
    trajectory_url,
)
from webapp.core.contexts.numbers import whole
from webapp.core.contexts.words import in_words
from webapp.rollouts.contexts.diffs import opcodes
from webapp.rollouts.contexts.steps import StepEntry, step_entries, window
from webapp.rollouts.models.trajectories import Trajectory
from webapp.rollouts.selectors import steps as step_reads
from webapp.rollouts.selectors import trajectories as reads
from webapp.rollouts.selectors.steps import OutlineRow

MAX_ROWS = 1_000
"""Rows that the page shows; the API has all."""
WHOLE_ROWS, WHOLE_CHARS = 8, 24_000
"""Rows, and characters of each side's texts, that the page shows in full."""


@dataclass(frozen=True, slots=True)
class AlignedSteps:
    """Steps of two rollouts in one row; None where one of them has no counterpart."""

    left: OutlineRow | None
    right: OutlineRow | None

    @property
    def is_equal(self) -> bool:
        """Return whether both rollouts took the same action."""
        return bool(self.left and self.right and self.left.action_hash == self.right.action_hash)


@dataclass(frozen=True, slots=True)
class Alignment:
    """Aligned steps of two rollouts."""

    rows: tuple[AlignedSteps, ...]

    @property
    def num_equal(self) -> int:
        """Return the number of equal actions."""
        return sum(row.is_equal for row in self.rows)

    @property
    def first_difference(self) -> int | None:
        """Return the first row whose actions differ; None if all are equal."""
        return next((number for number, row in enumerate(self.rows) if not row.is_equal), None)


def align(left_id: int, right_id: int) -> Alignment:
    """Align the steps of two trajectories by their actions, tool and arguments."""
    left, right = step_reads.outline(left_id), step_reads.outline(right_id)
    return Alignment(tuple(_aligned(left, right)))


def _aligned(left: Sequence[OutlineRow], right: Sequence[OutlineRow]) -> Iterator[AlignedSteps]:
    hashes = [[row.action_hash for row in rows] for rows in (left, right)]
    for _, left_start, left_end, right_start, right_end in opcodes(*hashes):
        for pair in zip_longest(left[left_start:left_end], right[right_start:right_end]):
            yield AlignedSteps(*pair)


def counterpart(trajectory: Trajectory, others: Iterable[Trajectory]) -> Trajectory | None:
    """Return the first rollout with the other result (passed or not), else the first; None without any."""
    candidates = [other for other in others if other.pk != trajectory.pk]
    passed = trajectory.verdict == "passed"
    graded = (other for other in candidates if other.verdict)
    differing = (other for other in graded if (other.verdict == "passed") != passed)
    return next(differing, candidates[0] if candidates else None)


def pair_url(trajectory: Trajectory, others: Iterable[Trajectory]) -> str:
    """Return the URL of a rollout beside its counterpart; empty without one."""
    other = counterpart(trajectory, others)
    return "" if other is None else compare_url(trajectory.pk, other.pk)


def compare_url(left: int, right: int) -> str:
    """Return the URL of the page of two rollouts."""
    return f"{reverse('trajectory-compare')}?{urlencode({'left': left, 'right': right})}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PairSide:
    """One of the two rollouts."""

    name: str
    """``left`` or ``right``: its parameter."""
    trajectory: Trajectory
    title: str
    """Task, run and place of the rollout."""
    url: str
    choices: tuple[tuple[int, str], ...]
    """(id, label) of the rollouts of its group."""


@dataclass(frozen=True, slots=True)
class PairRow:
    """A row of the page."""

    left: StepEntry | None
    right: StepEntry | None
    is_equal: bool

    @property
    def is_whole(self) -> bool:
        """Return whether a step of the row is shown in full."""
        return any(entry is not None and entry.view is not None for entry in (self.left, self.right))


@dataclass(frozen=True, slots=True, kw_only=True)
class PairContext:
    """Context of the page of two rollouts."""

    section: str
    crumbs: tuple[Crumb, ...]
    title: str
    left: PairSide
    right: PairSide
    rows: tuple[PairRow, ...]
    num_rows: int
    """Number of all rows."""
    num_equal: int
    first_difference: int | None
    query: str
    """Query string of the page without the row that is shown in full."""


def build_pair(left: Trajectory, right: Trajectory, params: Mapping[str, str]) -> PairContext:
    """Build the context of the page of two rollouts; ``params['from']`` is the first row in full."""
    alignment = align(left.pk, right.pk)
    first = alignment.first_difference
    start = whole(params.get("from", ""))
    start = (first or 0) if start is None else min(start, MAX_ROWS)
    shown = alignment.rows[:MAX_ROWS]
    entries = (
        _entries(left.pk, [row.left for row in shown], start),
        _entries(right.pk, [row.right for row in shown], start),
    )
    title, place = _task_name(left), (left.phase, left.iteration)
    return PairContext(
        section="runs",
        crumbs=group_crumbs(left.run, *place, left.task_key, title, Crumb("compare rollouts")),
        title=title,
        left=_side("left", left),
        right=_side("right", right),
        rows=tuple(
            PairRow(one, other, row.is_equal) for one, other, row in zip(*entries, shown, strict=True)
        ),
        num_rows=len(alignment.rows),
        num_equal=alignment.num_equal,
        first_difference=first if first is not None and first < MAX_ROWS else None,
        query=f"?{urlencode({'left': left.pk, 'right': right.pk})}",
    )


def _task_name(trajectory: Trajectory) -> str:
    return trajectory.task.instance_id if trajectory.task else trajectory.task_key


def _side(name: str, trajectory: Trajectory) -> PairSide:
    run_id, place = trajectory.run_id, (trajectory.phase, trajectory.iteration)
    return PairSide(
        name=name,
        trajectory=trajectory,
        title=f"{_task_name(trajectory)}, run {run_id}, {phase_label(*place)}",
        url=trajectory_url(run_id, *place, trajectory.task_key, trajectory.index),
        choices=tuple((sibling.pk, _label(sibling)) for sibling in reads.siblings(trajectory.group_id)),
    )


def _label(trajectory: Trajectory) -> str:
    outcome = trajectory.verdict or trajectory.termination or trajectory.state
    return f"rollout {trajectory.index}, {in_words(outcome)}, {trajectory.num_steps} steps"


def _entries(
    trajectory_id: int, rows: Sequence[OutlineRow | None], start: int
) -> tuple[StepEntry | None, ...]:
    """Return one side's steps by row, ``WHOLE_ROWS`` of them from ``start`` on in full."""
    whole_rows = [row for row in rows[start : start + WHOLE_ROWS] if row is not None]
    first = whole_rows[0].index if whole_rows else 0
    steps = step_reads.steps(trajectory_id, start=first, limit=len(whole_rows))
    present = [row for row in rows if row is not None]
    entries = iter(step_entries(present, window(steps, chars=WHOLE_CHARS)))
    return tuple(next(entries) if row is not None else None for row in rows)
