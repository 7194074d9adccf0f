"""Projection of events to rows: every table of a run except ``Event`` can be rebuilt from its events.

``Projection`` processes a batch in order. Trajectory events are buffered and written in bulk
(``trajectory_store``); rare events are written immediately, after the buffer. The result does not
depend on how the events were split into batches, and replaying the log produces the same rows. A complete
iteration, evaluation, checkpoint or trajectory is not changed until a later attempt resumes before it, and
only the newest attempt changes the run's state. To project a new event type, add a ``case`` to ``_apply`` and
a method here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db import connection

from engine.config.environment import generates_tasks
from engine.events import types as e
from engine.events.engines import EnginesReported
from engine.events.health import ValidationRecord
from engine.events.sandboxes import PoolStatus, SandboxesChanged
from engine.events.schedule import BatchSelected
from engine.types import RunKind, RunState
from webapp.core.dispatch import TaskName, send_on_commit
from webapp.datasets.services import health
from webapp.ingestion.services.engines import EngineStore
from webapp.notifications.services import outbox
from webapp.rollouts.models.trajectories import Trajectory
from webapp.rollouts.services import removal, traces
from webapp.rollouts.services.regrades import RegradeStore
from webapp.rollouts.services.rows import moment
from webapp.rollouts.services.scores import ScoreStore
from webapp.rollouts.services.store import TrajectoryStore
from webapp.runs.kinds import kind_of
from webapp.runs.models.alerts import Alert
from webapp.runs.models.iterations import Checkpoint, Evaluation, Iteration
from webapp.runs.models.runs import Run
from webapp.runs.services import states
from webapp.sandboxes.services import SandboxStore


class Projection:
    """Projection of events to the rows of one run, whose row lock the caller holds."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._trajectories = TrajectoryStore(run)
        self._sandboxes = SandboxStore(run)
        self._engines = EngineStore(run)
        self._scores = ScoreStore(run)
        self._regrades = RegradeStore(run)
        self._fields: dict[str, Any] = {}
        self._validated: list[ValidationRecord] = []
        self._alerts: list[Alert] = []

    def apply(self, events: Iterable[e.AnyEvent]) -> None:
        """Project events, in order, inside the caller's transaction."""
        for event in events:
            self._apply(event)
        self._trajectories.flush()
        self._sandboxes.flush()
        self._engines.flush()
        self._scores.flush()
        self._regrades.flush()
        if self._validated:
            health.record(run=self._run, records=self._validated)
            self._validated = []
        if self._alerts:
            outbox.alerts_raised(run=self._run, alerts=self._alerts)
            self._alerts = []
        if self._fields:
            Run.objects.filter(pk=self._run.pk).update(**self._fields)
            self._fields = {}

    def _apply(self, event: e.AnyEvent) -> None:
        match event:
            case e.StepFinished():
                self._trajectories.step(event)
            case e.TrajectoryStarted():
                self._trajectories.started(event)
            case e.TrajectoryFinished():
                self._trajectories.finished(event)
            case e.GroupFinished():
                self._trajectories.judged(event)
            case SandboxesChanged():
                self._sandboxes.changed(event)
            case PoolStatus():
                self._sandboxes.status(event)
            case EnginesReported():
                self._engines.reported(event)
            case e.TrajectoryScored():
                self._scores.scored(event)
            case e.TestExamined():
                self._scores.examined(event)
            case e.TrajectoryRegraded():
                self._regrades.regraded(event)
            case e.RunStarted():
                self._run_started(event)
            case e.RunPlanned():
                self._fields["total_iterations"] = event.total_iterations
            case e.RunProgress():
                self._progress(event)
            case e.TaskValidated():
                self._task_validated(event)
            case e.TasksSelected():
                self._tasks_selected(event)
            case e.RunPaused():
                self._move(event, RunState.PAUSED)
            case e.RunResumed():
                self._move(event, RunState.RUNNING, only_from=RunState.PAUSED)
            case e.RunFinished():
                self._run_finished(event)
            case BatchSelected():
                self._batch_selected(event)
            case e.IterationStarted():
                self._iteration_started(event)
            case e.TrajectoryTrained():
                self._trajectory_trained(event)
            case e.IterationFinished():
                self._iteration_finished(event)
            case e.EvaluationFinished():
                self._evaluation_finished(event)
            case e.CheckpointSaved():
                self._checkpoint_saved(event)
            case e.Alert():
                self._alert(event)

    def _move(self, event: e.AnyEvent, to: RunState, **fields: Any) -> bool:
        """Change the run's state if the event is from its newest attempt; older attempts are ignored."""
        return event.epoch == self._run.epoch and states.move(run_id=self._run.pk, to=to, **fields)

    def _run_started(self, event: e.RunStarted) -> None:
        self._trajectories.flush()
        self._sandboxes.begin()
        self._engines.begin()
        if event.rollouts_kept is None:
            removal.remove_from(run_id=self._run.pk, iteration=event.resumed_from)
        else:
            removal.remove_unfinished(run_id=self._run.pk, iteration=event.resumed_from or 0)
        current = event.resumed_from - 1 if event.resumed_from else None
        self._fields |= {
            "total_iterations": event.total_iterations,
            "current_iteration": current,
            "progress_message": "",
            "progress_follows": "",
            "progress_seconds_left": None,
            "collection": {},
        }
        if not kind_of(self._run.kind).keeps_progress:
            self._fields |= {"progress_done": 0, "progress_total": 0}
        self._move(event, RunState.RUNNING)

    def _progress(self, event: e.RunProgress) -> None:
        self._fields |= {
            "progress_message": event.message[:500],
            "progress_follows": event.follows[:500],
            "progress_seconds_left": event.seconds_left,
            "collection": event.collection.model_dump() if event.collection else {},
        }
        # A report without amounts, such as that of a wait, leaves those of such a run.
        if event.done or event.total or not kind_of(self._run.kind).keeps_progress:
            self._fields |= {"progress_done": event.done, "progress_total": event.total}
        if event.funnel is not None:
            self._fields["funnel"] = event.funnel.model_dump()

    def _run_finished(self, event: e.RunFinished) -> None:
        self._trajectories.flush()
        self._sandboxes.flush()
        moved = self._move(event, RunState(event.state), reason=event.reason, summary=event.summary)
        if not moved:
            return
        if section := kind_of(self._run.kind).makes_dataset:
            if event.state == "succeeded":
                send_on_commit(TaskName.SYNC_DATASET, self._run.config[section]["output"], self._run.pk)
        elif self._run.dataset is not None:
            # The run may have added to ``validation.jsonl``: a validation its results, other runs proofs of
            # mutated tests.
            send_on_commit(TaskName.SYNC_DATASET, self._run.dataset.name)

    def _task_validated(self, event: e.TaskValidated) -> None:
        own = f"{self._run.pk}/{event.record.task_id}"
        if self._run.kind == RunKind.VALIDATE and event.record.id == own:
            self._validated.append(event.record)

    def _tasks_selected(self, event: e.TasksSelected) -> None:
        counts = event.model_dump(exclude={"type", "seq", "epoch", "time", "dataset", "split"})
        known = self._fields.get("selection", self._run.selection)
        self._fields["selection"] = {**known, event.split: counts}

    def _sync_generated_tasks(self) -> None:
        """Mirror the tasks that the engine generated for this run before its first iteration."""
        if self._run.dataset_id is None and generates_tasks(self._run.config):
            send_on_commit(TaskName.SYNC_DATASET, str(self._run.config["dataset"]["name"]))

    def _iteration_started(self, event: e.IterationStarted) -> None:
        if event.iteration == 0:
            self._sync_generated_tasks()
        Iteration.objects.get_or_create(
            run=self._run,
            index=event.iteration,
            defaults={
                "policy_version": event.policy_version,
                "num_tasks": len(event.task_ids),
                "started_at": moment(event.time),
            },
        )
        self._fields |= {"current_iteration": event.iteration, "policy_version": event.policy_version}

    def _batch_selected(self, event: BatchSelected) -> None:
        self._trajectories.flush()
        for group in event.groups:
            Trajectory.objects.filter(
                run=self._run,
                phase="train",
                iteration=group.iteration,
                task_key=group.task_id,
                index__in=group.indices,
            ).update(trained_iteration=event.iteration, trained_version=event.policy_version)

    def _trajectory_trained(self, event: e.TrajectoryTrained) -> None:
        self._trajectories.flush()
        traces.store(run=self._run, event=event)

    def _iteration_finished(self, event: e.IterationFinished) -> None:
        self._trajectories.flush()
        row, _ = Iteration.objects.get_or_create(
            run=self._run,
            index=event.iteration,
            defaults={"policy_version": event.policy_version, "started_at": moment(event.time)},
        )
        if row.finished_at is not None:
            return
        row.policy_version = event.policy_version
        row.finished_at = moment(event.time)
        row.metrics = event.metrics
        row.timeline = event.timeline.model_dump(mode="json") if event.timeline is not None else None
        row.profile = iteration_profile(self._run.pk, event.iteration)
        row.save()
        send_on_commit(TaskName.WATCH, self._run.pk)
        self._fields |= {"current_iteration": event.iteration, "policy_version": event.policy_version}

    def _evaluation_finished(self, event: e.EvaluationFinished) -> None:
        if event.iteration == 0:
            self._sync_generated_tasks()
        names = (
            "policy_version", "num_samples", "num_tasks", "num_solved", "solve_rate",
            "interval_low", "interval_high",
        )  # fmt: skip
        Evaluation.objects.get_or_create(
            run=self._run,
            iteration=event.iteration,
            name=event.name[:64],
            defaults={name: getattr(event, name) for name in names}
            | {
                "pass_at_k": [entry.model_dump() for entry in event.pass_at_k],
                "metrics": event.metrics,
                "finished_at": moment(event.time),
            },
        )

    def _checkpoint_saved(self, event: e.CheckpointSaved) -> None:
        Checkpoint.objects.get_or_create(
            run=self._run,
            iteration=event.iteration,
            defaults={
                "policy_version": event.policy_version,
                "path": event.path[:1000],
                "checksum": event.checksum[:128],
                "saved_at": moment(event.time),
            },
        )

    def _alert(self, event: e.Alert) -> None:
        alert = Alert.objects.create(
            run=self._run,
            seq=event.seq,
            severity=event.severity,
            code=event.code[:100],
            message=event.message,
            iteration=event.iteration,
            task_ids=event.task_ids,
            time=moment(event.time),
        )
        self._alerts.append(alert)


def iteration_profile(run_id: int, iteration: int) -> dict[str, Any]:
    """Return the mean metrics by step index over an iteration's training steps, and counts of actions."""
    where = (
        "FROM webapp_step s JOIN webapp_trajectory t ON t.id = s.trajectory_id"
        " WHERE t.run_id = %s AND t.phase = 'train' AND t.iteration = %s"
    )
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*), round(avg(s.thinking_tokens), 2)::float,"
            f" round(avg(s.generated_tokens), 2)::float {where} GROUP BY s.index ORDER BY s.index",
            [run_id, iteration],
        )
        columns = list(zip(*cursor.fetchall(), strict=True)) or [(), (), ()]
        cursor.execute(f"SELECT s.action, count(*) {where} GROUP BY 1 ORDER BY 1", [run_id, iteration])
        actions = dict(cursor.fetchall())
    return {
        "steps": list(columns[0]),
        "thinking": list(columns[1]),
        "generated": list(columns[2]),
        "actions": actions,
    }
