"""One group: siblings in parallel columns, their steps aligned, their tests as a matrix."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from webapp.core.contexts.frame import Crumb, LiveCursor, iteration_url, phase_label, run_crumbs
from webapp.rollouts.contexts.advantage import Sibling, algorithm_of, equation, siblings
from webapp.rollouts.contexts.diffs import Diff, patch_diff
from webapp.rollouts.contexts.pair import pair_url
from webapp.rollouts.contexts.staleness import Staleness, staleness_of
from webapp.rollouts.contexts.what_if import WhatIf, build_what_if
from webapp.rollouts.models.scores import Score
from webapp.rollouts.models.trajectories import Group, Step, TestResult, Trajectory
from webapp.rollouts.selectors import groups as group_reads
from webapp.rollouts.selectors import scores as score_reads
from webapp.runs.models.runs import Run


@dataclass(frozen=True, slots=True)
class StripCell:
    """One step of sibling ``index``; ``bar`` is the thinking's length, 2 … 48 px."""

    index: int
    step: Step
    bar: int


@dataclass(frozen=True, slots=True)
class StripRow:
    """Step ``index`` of every sibling; None where a sibling had ended."""

    index: int
    cells: tuple[StripCell | None, ...]
    diverges: bool
    """True for the first row in which the siblings' actions differ."""


@dataclass(frozen=True, slots=True)
class MatrixRow:
    """One required test and its outcome in every sibling (empty where it was not graded)."""

    test_id: str
    kind: str
    outcomes: tuple[str, ...]

    @property
    def found(self) -> tuple[str, ...]:
        """Return the distinct outcomes of the graded siblings."""
        return tuple(dict.fromkeys(outcome for outcome in self.outcomes if outcome))


@dataclass(frozen=True, slots=True)
class PatchGroup:
    """A patch and the finished rollouts that ended in it."""

    label: str
    """``rollout 3``, ``rollouts 0–6, 9``."""
    verdicts: tuple[str, ...]
    """Distinct verdicts of the graded rollouts."""
    diff: Diff | None
    """None for rollouts without a patch."""


@dataclass(frozen=True, slots=True)
class ScoreRow:
    """A verifier's scores; None where a sibling has none."""

    verifier: Run
    scores: tuple[Score | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupContext:
    """Context of the group page; columns are ordered by reward, then index."""

    section: str
    crumbs: tuple[Crumb, ...]
    live: LiveCursor
    run: Run
    group: Group
    title: str
    equation: str
    """The advantage of the run's objective."""
    columns: tuple[Sibling, ...]
    staleness: tuple[Staleness | None, ...]
    """Staleness of each column; empty where none is known."""
    scores: tuple[ScoreRow, ...]
    strip: tuple[StripRow, ...]
    pair_url: str
    """URL of the best rollout beside one with another result; empty for a single rollout."""
    num_steps: int
    matrix: tuple[MatrixRow, ...]
    """Tests whose outcome differs between siblings."""
    same_tests: tuple[MatrixRow, ...]
    """Tests with one outcome in every graded sibling."""
    patches: tuple[PatchGroup, ...]
    what_if: WhatIf | None
    """None where nothing was trained on the group."""


MAX_STRIP = 200


def _cell(index: int, step: Step | None, most: int) -> StripCell | None:
    return StripCell(index, step, 2 + round(46 * (step.thinking_tokens or 0) / most)) if step else None


def _strip(columns: list[Trajectory], steps: dict[int, list[Step]]) -> tuple[tuple[StripRow, ...], int]:
    longest = max((len(steps[t.pk]) for t in columns), default=0)
    most = max((s.thinking_tokens or 0 for rows in steps.values() for s in rows), default=0) or 1
    by_index = {t.pk: {step.index: step for step in steps[t.pk]} for t in columns}
    last = max((step.index for rows in steps.values() for step in rows), default=-1)
    rows: list[StripRow] = []
    diverged = False
    for index in range(min(last + 1, MAX_STRIP)):
        row = [by_index[t.pk].get(index) for t in columns]
        actions = {step.action_hash if step else "" for step in row}
        diverges = not diverged and len(actions) > 1
        diverged = diverged or diverges
        cells = tuple(_cell(t.index, step, most) for t, step in zip(columns, row, strict=True))
        rows.append(StripRow(index, cells, diverges))
    return tuple(rows), longest


def _matrix(columns: list[Trajectory], tests: dict[int, list[TestResult]]) -> tuple[MatrixRow, ...]:
    order: dict[str, str] = {}
    outcomes: dict[int, dict[str, str]] = {}
    for trajectory in columns:
        outcomes[trajectory.pk] = {}
        for test in tests[trajectory.pk]:
            order.setdefault(test.test_id, test.kind)
            outcomes[trajectory.pk][test.test_id] = test.outcome
    return tuple(
        MatrixRow(test_id, kind, tuple(outcomes[t.pk].get(test_id, "") for t in columns))
        for test_id, kind in sorted(order.items(), key=lambda item: (item[1] != "fail_to_pass", item[0]))
    )


def _scores(columns: list[Trajectory]) -> tuple[ScoreRow, ...]:
    verifiers: dict[int, Run] = {}
    scores: dict[tuple[int, int], Score] = {}
    for score in score_reads.given_to(columns):
        verifiers.setdefault(score.run_id, score.run)
        scores[score.run_id, score.index] = score
    return tuple(
        ScoreRow(verifier, tuple(scores.get((number, sibling.index)) for sibling in columns))
        for number, verifier in verifiers.items()
    )


def patch_groups(rollouts: Iterable[Trajectory]) -> tuple[PatchGroup, ...]:
    """Group finished rollouts by their patches, in the order given."""
    groups: dict[str, list[Trajectory]] = {}
    for trajectory in rollouts:
        if trajectory.state != Trajectory.State.RUNNING:
            groups.setdefault(trajectory.patch_hash, []).append(trajectory)
    return tuple(
        PatchGroup(
            label=f"rollout{'s' if len(equal) > 1 else ''} {_ranges([t.index for t in equal])}",
            verdicts=tuple(dict.fromkeys(t.verdict for t in equal if t.verdict)),
            diff=patch_diff(equal[0].patch),
        )
        for equal in groups.values()
    )


def _ranges(numbers: Sequence[int]) -> str:
    """Return numbers in order with consecutive ones joined, such as ``0–6, 9``."""
    # Consecutive numbers have the same distance to their places.
    runs = groupby(enumerate(sorted(numbers)), key=lambda item: item[1] - item[0])
    spans = [[number for _, number in run] for _, run in runs]
    return ", ".join(f"{span[0]}–{span[-1]}" if len(span) > 1 else str(span[0]) for span in spans)


def build_group(
    run: Run, *, phase: str, iteration: int, task_key: str, params: Mapping[str, str]
) -> GroupContext | None:
    """Build the context of a group's page; None if there is no such group."""
    group = group_reads.get_group(run.pk, phase=phase, iteration=iteration, task_key=task_key)
    if group is None:
        return None
    columns = sorted(
        group.trajectories.all(), key=lambda t: (-(t.reward if t.reward is not None else -1e9), t.index)
    )
    staleness = tuple(staleness_of(trajectory) for trajectory in columns)
    strip, longest = _strip(columns, group_reads.steps_of(columns))
    tests = _matrix(columns, group_reads.tests_of(columns))
    title = group.task.instance_id if group.task else task_key
    where = Crumb(phase_label(phase, iteration), iteration_url(run.pk, phase, iteration))
    return GroupContext(
        section="runs",
        crumbs=run_crumbs(run, where, Crumb(title)),
        live=LiveCursor(run.pk, run.last_seq, "group", str(run.epoch), (phase, str(iteration), task_key)),
        run=run,
        group=group,
        title=title,
        equation=equation(run),
        columns=siblings(columns, algorithm_of(run)),
        staleness=staleness if any(staleness) else (),
        scores=_scores(columns),
        strip=strip,
        pair_url=pair_url(columns[0], columns) if columns else "",
        num_steps=longest,
        matrix=tuple(row for row in tests if len(row.found) > 1),
        same_tests=tuple(row for row in tests if len(row.found) <= 1),
        patches=patch_groups(columns),
        what_if=build_what_if(run, columns, iteration=iteration, task_key=task_key, params=params)
        if phase == "train"
        else None,
    )
