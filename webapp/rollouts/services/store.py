"""Bulk storage of a batch's trajectory events in a constant number of statements.

Events are merged by trajectory key in order of arrival. A start discards earlier events, unless the same
attempt had finished the trajectory and infrastructure did not lose it. Steps accumulate. The first terminal
event is kept. ``flush`` needs the same number of queries for one trajectory as for a thousand. The caller
holds the run's row lock, so there are no concurrent inserts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from django.db import connection
from django.db.models import Model

from engine.events.types import (
    GroupFinished,
    GroupMember,
    StepFinished,
    TrajectoryFinished,
    TrajectoryRef,
    TrajectoryStarted,
)
from engine.types import INFRASTRUCTURE_REASONS, TIME_LIMITS, TerminationReason
from webapp.core.dispatch import TaskName, send_on_commit
from webapp.core.services.copying import copy_rows
from webapp.datasets.models.datasets import Task
from webapp.rollouts.models.passages import Passage
from webapp.rollouts.models.scans import Scan
from webapp.rollouts.models.trajectories import (
    Group,
    ImportedFields,
    Step,
    TestLog,
    TestResult,
    TokenBlob,
    TokenTrace,
    Trajectory,
    TrajectoryOpening,
)
from webapp.rollouts.services import rows
from webapp.runs.models.runs import Run

Key = tuple[str, int, str, int]
"""Identity of a trajectory within its run: phase, iteration, task key, index."""
GroupKey = tuple[str, int, str]
_SCAN_COLUMNS = (
    "trajectory_id", "run_id", "phase", "iteration", "versions", "fingerprint", "found", "hits",
    "purpose_steps", "purpose_thinking", "is_indexed",
)  # fmt: skip
_HELDOUT = "eval:heldout"
"""Phase whose tasks may come from another dataset than the run's (``evaluation.dataset``)."""


@dataclass(slots=True)
class _Pending:
    """Events of a batch about one trajectory, in order of arrival."""

    time: float
    epoch: int
    started: TrajectoryStarted | None = None
    steps: dict[int, StepFinished] = field(default_factory=dict)
    finished: TrajectoryFinished | None = None
    member: GroupMember | None = None


class TrajectoryStore:
    """Buffer of one locked run's trajectory events."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._pending: dict[Key, _Pending] = {}

    def started(self, event: TrajectoryStarted) -> None:
        """Buffer a start; it replaces an unfinished, lost or older attempt's trajectory with the same key."""
        key = _key(event.ref)
        known = self._pending.get(key)
        ended = known.finished if known is not None else None
        if known is None or ended is None or known.epoch < event.epoch or _is_lost(ended):
            self._pending[key] = _Pending(event.time, event.epoch, started=event)

    def step(self, event: StepFinished) -> None:
        """Buffer a step."""
        pending = self._pending_for(event.ref, event.time, event.epoch)
        if pending.finished is None:
            pending.steps[event.index] = event

    def finished(self, event: TrajectoryFinished) -> None:
        """Buffer a terminal event; a second one for the same key is ignored."""
        pending = self._pending_for(event.ref, event.time, event.epoch)
        if pending.finished is None:
            pending.finished = event

    def judged(self, event: GroupFinished) -> None:
        """Buffer the advantages and masks of a group's members."""
        for member in event.members:
            key = (event.phase, event.iteration, event.task_id, member.index)
            self._pending.setdefault(key, _Pending(event.time, event.epoch)).member = member

    def flush(self) -> None:
        """Write the buffered events."""
        if not self._pending:
            return
        pending, self._pending = self._pending, {}
        groups = self._groups(pending)
        existing = _fetch(self._run.pk, pending)
        pending = {key: p for key, p in pending.items() if key in existing or _creates_trajectory(p)}
        for key, p in pending.items():
            _drop_late(p, existing.get(key))
        known = [(existing[key], p) for key, p in pending.items() if key in existing]
        replaced = [row.pk for row, p in known if p.started]
        ended = [row.pk for row, p in known if p.finished and row.state == Trajectory.State.FINISHED]
        _delete([Step, Scan, Passage, TokenTrace], replaced)
        _delete(_ENDS, [*replaced, *ended])
        known_steps = {key: t.num_steps for key, t in existing.items() if not pending[key].started}
        trajectories = {
            key: _fold(p, self._row(key, p, existing.get(key), groups)) for key, p in pending.items()
        }
        live = {key for key, p in pending.items() if key in existing and _only_steps(p)}
        _save_whole([t for key, t in trajectories.items() if key not in live])
        _save_live([trajectories[key] for key in live])
        _write_parts(trajectories, pending, known_steps)
        refresh_groups({groups[key[:3]].pk for key in pending.keys() - live})

    def _pending_for(self, ref: TrajectoryRef, time: float, epoch: int) -> _Pending:
        return self._pending.setdefault(_key(ref), _Pending(time, epoch))

    def _row(
        self, key: Key, pending: _Pending, existing: Trajectory | None, groups: dict[GroupKey, Group]
    ) -> Trajectory:
        """Return the stored row, or a new one with the old id to keep links and annotations."""
        if existing is not None and pending.started is None:
            return existing
        group = groups[key[:3]]
        time = rows.moment(pending.time)
        return Trajectory(
            pk=existing.pk if existing is not None else None,
            run=self._run, group=group, task_id=group.task_id, epoch=pending.epoch,
            started_at=time, active_at=time, phase=key[0], iteration=key[1], task_key=key[2], index=key[3],
        )  # fmt: skip

    def _groups(self, pending: dict[Key, _Pending]) -> dict[GroupKey, Group]:
        creating = {key[:3]: p for key, p in reversed(pending.items()) if _creates_trajectory(p)}
        stored = _fetch_groups(self._run.pk, {key[:3] for key in pending})
        missing = [key for key in reversed(creating) if key not in stored]
        tasks = self._tasks(missing)
        created = Group.objects.bulk_create(
            Group(
                run=self._run, phase=phase, iteration=iteration, task_key=task_key,
                task_id=tasks.get((phase, task_key)),
                started_at=rows.moment(creating[phase, iteration, task_key].time),
            )
            for phase, iteration, task_key in missing
        )  # fmt: skip
        return stored | {(group.phase, group.iteration, group.task_key): group for group in created}

    def _tasks(self, groups: list[GroupKey]) -> dict[tuple[str, str], int]:
        """Return the task ids of groups, by phase and task key."""
        task_ids: dict[tuple[str, str], int] = {}
        for phase in {group[0] for group in groups}:
            keys = {group[2] for group in groups if group[0] == phase}
            heldout_dataset = self._run.config.get("evaluation", {}).get("dataset")
            is_other = phase == _HELDOUT and heldout_dataset is not None
            where = {"dataset__name": heldout_dataset} if is_other else {"dataset": self._run.dataset_id}
            tasks = Task.objects.filter(**where, key__in=keys).values_list("key", "pk")
            task_ids |= {(phase, key): pk for key, pk in tasks}
        return task_ids


def _key(ref: TrajectoryRef) -> Key:
    return (ref.phase, ref.iteration, ref.task_id, ref.index)


def _creates_trajectory(pending: _Pending) -> bool:
    """Return whether these events create a missing trajectory; a judgement alone does not."""
    return bool(pending.started or pending.steps or pending.finished)


def _only_steps(pending: _Pending) -> bool:
    return not (pending.started or pending.finished or pending.member)


def _drop_late(pending: _Pending, existing: Trajectory | None) -> None:
    """Drop events about finished trajectories, except starts by a later attempt or after a loss.

    A trajectory cancelled at the end of its run still accepts its own events, which may arrive later.
    """
    if existing is None or existing.state != Trajectory.State.FINISHED:
        return
    if existing.termination == TerminationReason.CANCELLED:
        return
    if pending.started is None or (pending.epoch <= existing.epoch and not _is_lost(existing)):
        pending.started = pending.finished = None
        pending.steps.clear()


def _is_lost(ended: Trajectory | TrajectoryFinished) -> bool:
    """Return whether infrastructure lost a finished trajectory or its grading."""
    return ended.reward is None or ended.termination in INFRASTRUCTURE_REASONS


def _fold(pending: _Pending, trajectory: Trajectory) -> Trajectory:
    if pending.started:
        rows.start(trajectory, pending.started)
    for step in pending.steps.values():
        rows.advance(trajectory, step)
    if pending.finished:
        rows.finish(trajectory, pending.finished)
    if pending.member:
        rows.judge(trajectory, pending.member)
    return trajectory


def _fetch(run_id: int, keys: Iterable[Key]) -> dict[Key, Trajectory]:
    columns = [list(column) for column in zip(*keys, strict=True)]
    trajectories = Trajectory.objects.raw(
        "SELECT t.* FROM unnest(%s::text[], %s::int[], %s::text[], %s::int[])"
        " AS k(phase, iteration, task_key, index)"
        " JOIN webapp_trajectory t USING (phase, iteration, task_key, index) WHERE t.run_id = %s",
        [*columns, run_id],
    )
    return {(t.phase, t.iteration, t.task_key, t.index): t for t in trajectories}


def _fetch_groups(run_id: int, keys: set[GroupKey]) -> dict[GroupKey, Group]:
    columns = [list(column) for column in zip(*keys, strict=True)]
    groups = Group.objects.raw(
        "SELECT g.* FROM unnest(%s::text[], %s::int[], %s::text[]) AS k(phase, iteration, task_key)"
        " JOIN webapp_group g USING (phase, iteration, task_key) WHERE g.run_id = %s",
        [*columns, run_id],
    )
    return {(g.phase, g.iteration, g.task_key): g for g in groups}


_LIVE_COLUMNS = (
    "num_steps", "prompt_tokens", "generated_tokens", "context_tokens", "thinking_tokens", "cached_tokens",
    "cost", "active_at",
)  # fmt: skip
_COLUMNS = tuple(field.attname for field in Trajectory._meta.concrete_fields)
_VALUES = [f'"{name}"' for name in _COLUMNS if name != "id"]
_UPSERT = (
    f"INSERT INTO webapp_trajectory (id, {', '.join(_VALUES)})"  # noqa: S608
    " SELECT COALESCE(id, nextval(pg_get_serial_sequence('webapp_trajectory', 'id'))),"
    f" {', '.join(_VALUES)} FROM json_populate_recordset(NULL::webapp_trajectory, %s)"
    f" ON CONFLICT (run_id, phase, iteration, task_key, index) DO UPDATE SET ({', '.join(_VALUES)})"
    f" = ROW ({', '.join(f'EXCLUDED.{value}' for value in _VALUES)})"
    " RETURNING phase, iteration, task_key, index, id"
)


def _save_whole(trajectories: list[Trajectory]) -> None:
    """Insert trajectories, or replace the stored ones with the same keys; the ids are set."""
    if not trajectories:
        return
    # The ORM takes five times as much processor time for a statement of 55 columns a row.
    records = [{name: getattr(t, name) for name in _COLUMNS} for t in trajectories]
    with connection.cursor() as cursor:
        cursor.execute(_UPSERT, [json.dumps(records, default=datetime.isoformat)])
        ids = {(phase, iteration, task_key, index): pk for phase, iteration, task_key, index, pk in cursor}
    for t in trajectories:
        t.pk = ids[t.phase, t.iteration, t.task_key, t.index]


def _save_live(trajectories: list[Trajectory]) -> None:
    """Update only the counters of live trajectories, the most frequent case."""
    if not trajectories:
        return
    columns = [[getattr(t, name) for t in trajectories] for name in _LIVE_COLUMNS]
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE webapp_trajectory t SET num_steps = k.n, prompt_tokens = k.p,"
            " generated_tokens = k.g, context_tokens = k.x, thinking_tokens = k.t, cached_tokens = k.r,"
            " cost = k.c, active_at = k.a FROM unnest(%s::bigint[], %s::int[], %s::bigint[], %s::bigint[],"
            " %s::bigint[], %s::bigint[], %s::bigint[], %s::float8[], %s::timestamptz[])"
            " AS k(id, n, p, g, x, t, r, c, a) WHERE t.id = k.id",
            [[t.pk for t in trajectories], *columns],
        )


def _write_parts(
    trajectories: dict[Key, Trajectory],
    pending: dict[Key, _Pending],
    known_steps: dict[Key, int],
) -> None:
    """Write steps, test results, logs and tokens of saved trajectories."""
    repeated = [
        (trajectories[key].pk, index)
        for key, p in pending.items()
        for index in p.steps
        if index < known_steps.get(key, 0)
    ]
    _delete_steps(repeated)
    copy_rows(
        Step,
        rows.STEP_COLUMNS,
        (rows.step_row(trajectories[key].pk, e) for key, p in pending.items() for e in p.steps.values()),
    )
    ended = [(trajectories[key].pk, p.finished) for key, p in pending.items() if p.finished]
    if not ended:
        return
    _add_scans([trajectories[key] for key, p in pending.items() if p.finished])
    tests = (row for pk, event in ended for row in rows.test_rows(pk, event))
    copy_rows(TestResult, rows.TEST_COLUMNS, tests)
    for model, columns, row_of in _AT_MOST_ONE:
        values = (row_of(pk, event) for pk, event in ended)
        copy_rows(model, columns, (row for row in values if row is not None))


def _add_scans(ended: list[Trajectory]) -> None:
    """Add empty scans of trajectories and send the task that fills them and indexes the texts."""
    ended = [t for t in ended if t.termination != TerminationReason.CANCELLED]
    copy_rows(
        Scan,
        _SCAN_COLUMNS,
        ((t.pk, t.run_id, t.phase, t.iteration, "{}", "", [], "{}", [], [], False) for t in ended),
    )
    if ended:
        send_on_commit(TaskName.SCAN)


_AT_MOST_ONE: tuple[
    tuple[
        type[Model],
        tuple[str, ...],
        Callable[[int, TrajectoryFinished], tuple[object, ...] | None],
    ],
    ...,
] = (
    (TestLog, rows.TEST_LOG_COLUMNS, rows.log_row),
    (TrajectoryOpening, rows.OPENING_COLUMNS, rows.opening_row),
    (ImportedFields, rows.IMPORTED_COLUMNS, rows.imported_row),
    (TokenBlob, rows.TOKEN_BLOB_COLUMNS, rows.token_row),
)
"""Tables with at most one row per trajectory: model, columns, and conversion from the terminal event."""


_ENDS: Sequence[type[Model]] = (TestResult, *(model for model, _, _ in _AT_MOST_ONE))
"""Tables with rows from the terminal event, which a cancelled rollout may have twice."""


def _delete(parts: Sequence[type[Model]], trajectory_ids: list[int]) -> None:
    if trajectory_ids:
        for part in parts:
            part._default_manager.filter(trajectory_id__in=trajectory_ids).delete()


def _delete_steps(keys: list[tuple[int, int]]) -> None:
    if keys:
        with connection.cursor() as cursor:
            cursor.execute(
                "DELETE FROM webapp_step s USING unnest(%s::bigint[], %s::int[]) AS k(id, index)"
                " WHERE s.trajectory_id = k.id AND s.index = k.index",
                [[key[0] for key in keys], [key[1] for key in keys]],
            )


def refresh_groups(group_ids: Collection[int]) -> None:
    """Recompute the aggregates of groups from their trajectories."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            UPDATE webapp_group g SET size = s.size, num_finished = s.finished, num_graded = s.graded,
                num_solved = s.solved, num_cut_short = s.cut_short, num_masked = s.masked,
                mean_reward = s.mean,
                started_at = s.started_at,
                finished_at = CASE WHEN s.live = 0 THEN s.finished_at END
            FROM (SELECT group_id, count(*) AS size, count(*) FILTER (WHERE state = 'running') AS live,
                    count(*) FILTER (WHERE state = 'finished' AND termination <> 'cancelled') AS finished,
                    count(reward) FILTER (WHERE verdict <> '') AS graded,
                    count(*) FILTER (WHERE verdict = 'passed') AS solved,
                    count(reward) FILTER (WHERE termination = ANY(%s) AND verdict NOT IN ('', 'passed'))
                        AS cut_short,
                    count(*) FILTER (WHERE loss_mask IS FALSE) AS masked, avg(reward) AS mean,
                    min(started_at) AS started_at, max(finished_at) AS finished_at
                FROM webapp_trajectory WHERE group_id = ANY(%s) GROUP BY group_id) s
            WHERE g.id = s.group_id
            """,
            [sorted(TIME_LIMITS), list(group_ids)],
        )
