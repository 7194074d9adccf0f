"""Reinforcement learning: collect → grade → update, until the iterations are done.

    run_started
    evaluate at 0 ─▶ checkpoint 0                      (a fresh run; a resumed one skips it)
    for n in iterations:
        safe point  (pause, stop)
        collect     tasks_per_iteration groups ─▶ rollouts in sandboxes, graded while others run
        prefetch    the images of iteration n + 1
        update      objective ─▶ weights in place ─▶ published to the policy under a new version, proven
        report      group_finished × groups, iteration_finished
        evaluate at n + 1 if due ─▶ checkpoint n + 1 if due
    run_finished

All randomness is a function of the run's seed and of the checkpoint, so a resumed attempt repeats the same
iterations. ``collect`` waits for the next batch of a ``RolloutFeed``. With a ``schedule.mode`` other than
``sync``, the feed collects during updates too, and a resumed attempt repeats the recorded batches.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

import numpy as np

from engine.config.run import TrainRun
from engine.events.delivery.spool import SPOOL_NAME
from engine.events.schedule import Timeline
from engine.events.token_trace import MAX_TRACED, TraceBlock
from engine.events.types import (
    CheckpointSaved,
    GroupFinished,
    IterationFinished,
    IterationStarted,
    TrajectoryTrained,
)
from engine.garbage import collect_rarely
from engine.inference.base import TrainablePolicy
from engine.orchestrator.collection.ledger import Ledger, Part, read_evaluations
from engine.orchestrator.context import RunContext, RunResult, RunStopped
from engine.orchestrator.evaluations import run_evaluation, spread
from engine.orchestrator.policies.engines import start_training_engines
from engine.orchestrator.policies.policies import open_trained_policy
from engine.orchestrator.policies.warm_start import with_start_policy
from engine.orchestrator.setup import (
    OPENING,
    RunEnvironments,
    announce,
    build_scheduler,
    check_losses,
    open_environments,
)
from engine.orchestrator.tasks.selection import evaluation_rows, run_rows
from engine.orchestrator.training.curriculum import TaskCursor
from engine.orchestrator.training.feed import RolloutFeed
from engine.orchestrator.training.memory import warn_of_memory
from engine.orchestrator.training.phases import Plan, TrainingPhases
from engine.orchestrator.training.prefetch import Prefetch
from engine.orchestrator.training.progress import HELDOUT, TRAIN, Saved, TrainProgress
from engine.orchestrator.training.record import TrainingRecord
from engine.orchestrator.training.resampling import Collection, discarded_members
from engine.orchestrator.training.staleness import staleness_metrics
from engine.orchestrator.training.task_weights import GroupOutcome
from engine.orchestrator.watch.alarms import Alarms
from engine.orchestrator.watch.event_observer import TRAIN_PHASE
from engine.orchestrator.watch.machine import MachineProbe
from engine.orchestrator.watch.metrics import iteration_metrics
from engine.orchestrator.watch.phase_lanes import PhaseLanes
from engine.trainer.async_trainer import AsyncTrainer
from engine.trainer.checkpoints.checkpoint import Checkpoint, load_latest
from engine.trainer.checkpoints.writer import CheckpointWriter
from engine.trainer.factory import TrainingSetup, device_name
from engine.trainer.learner import UpdateResult
from engine.types import Group, TaskRow


async def train(config: TrainRun, run: RunContext) -> RunResult:
    """Train from the configured policy, or resume from the run's last checkpoint."""
    checkpoint = await asyncio.to_thread(load_latest, run.run_dir)
    trained, record, spool = checkpoint.iteration if checkpoint else None, None, run.run_dir / SPOOL_NAME
    is_sync = config.schedule.mode == "sync"
    if not is_sync or config.rollout.resume_in_flight == "replay":
        record = await asyncio.to_thread(TrainingRecord.read, spool, trained=trained or 0, is_sync=is_sync)
    announce(
        run,
        resumed_from=trained,
        rollouts_kept=record.num_finished if record else None,
        total_iterations=config.trainer.iterations,
    )
    evaluated = await asyncio.to_thread(read_evaluations, spool)
    config = await with_start_policy(config, run)
    loop = await TrainingLoop.open(config, run, checkpoint, record or TrainingRecord(spool), evaluated)
    try:
        await loop.run(fresh=checkpoint is None)
    except RunStopped as stop:
        return RunResult(state="stopped", reason=str(stop), summary=loop.progress.summary())
    finally:
        await loop.close()
    device = device_name(config.trainer)
    return RunResult(state="succeeded", summary={**loop.progress.summary(), "device": device})


class TrainingLoop:
    """Training loop of one attempt: policy, trainer and progress; created with ``open``."""

    def __init__(
        self,
        config: TrainRun,
        run: RunContext,
        environments: RunEnvironments,
        trainer: AsyncTrainer,
        policy: TrainablePolicy,
        *,
        rows: Sequence[TaskRow],
        heldout: Sequence[TaskRow],
        cursor: Mapping[str, Any] | None,
        record: TrainingRecord,
        evaluated: Mapping[Part, Ledger],
    ) -> None:
        self._config = config
        self._run = run
        self._trainer = trainer
        self._rows = rows
        self._heldout = heldout
        self._cursor = TaskCursor(
            rows,
            per_iteration=config.trainer.tasks_per_iteration,
            seed=config.seed,
            curriculum=config.curriculum,
            lag=config.schedule.staleness,
        )
        self._alarms = Alarms(run)
        self._machine = MachineProbe()
        self.progress = TrainProgress()
        self._plan = Plan.of(config)
        self._phases = TrainingPhases(run, self._plan, self.progress)
        self.policy = policy
        self._lanes = PhaseLanes()
        scheduler = build_scheduler(config, run, environments, self.policy, lanes=self._lanes)
        self._feed = RolloutFeed.of(config, scheduler, self._cursor, record, run.sink)
        self._restore(cursor)
        self._writer = CheckpointWriter(
            run.run_dir, keep=config.trainer.keep_checkpoints, keep_best=config.trainer.keep_best
        )
        self._evaluated = evaluated
        self._saving_s = 0.0
        """Delay of this iteration by the checkpoint before it, seconds."""
        self._evaluator = build_scheduler(
            config, run, environments, self.policy, evaluation=config.evaluation
        )
        self._prefetch = Prefetch(environments, group_size=config.rollout.group_size)

    @classmethod
    async def open(
        cls,
        config: TrainRun,
        run: RunContext,
        checkpoint: Checkpoint | None,
        record: TrainingRecord,
        evaluated: Mapping[Part, Ledger],
    ) -> TrainingLoop:
        """Open everything an attempt needs; the model first, so that an unusable one starts no sandbox.

        Args:
            config: the run's configuration.
            run: this attempt.
            checkpoint: the checkpoint to resume from; None starts from the configured policy.
            record: what earlier attempts collected; empty where the iterations after the checkpoint are
                sampled again.
            evaluated: rollouts of evaluations that earlier attempts finished.
        """
        run.progress(OPENING, 0, 0)
        async with AsyncExitStack() as opened:
            policy: TrainablePolicy | None = None
            if config.policy.engine == "vllm":  # first: the servers start in the background
                policy = await start_training_engines(config, run, checkpoint)
                opened.push_async_callback(policy.close)
            rows = await asyncio.to_thread(run_rows, config, run)
            heldout = await asyncio.to_thread(evaluation_rows, config, run)
            if checkpoint is None:
                await asyncio.to_thread(warn_of_memory, config, run)
            trainer = await AsyncTrainer.open(
                TrainingSetup.of(config),
                run_dir=run.run_dir,
                home=run.home,
                checkpoint=checkpoint,
                notice=run.notice(),
            )
            opened.push_async_callback(trainer.close)
            environments = await open_environments(config, run)
            cursor = checkpoint.cursor if checkpoint else None
            if policy is None:
                policy = await asyncio.to_thread(open_trained_policy, config, trainer)
            loop = cls(
                config,
                run,
                environments,
                trainer,
                policy,
                rows=rows,
                heldout=heldout,
                cursor=cursor,
                record=record,
                evaluated=evaluated,
            )
            await run.interruptible(policy.publish(loop.progress.policy_version, trainer))
            # The previous attempt may have been killed between the checkpoint and its event.
            await loop._announce_checkpoint(checkpoint)
            opened.pop_all()
        collect_rarely()  # again: also exempts the models and datasets loaded since
        return loop

    def _restore(self, cursor: Mapping[str, Any] | None) -> None:
        """Continue from a checkpoint, or from the start, and from the record. Raises ConfigError."""
        if cursor is not None:
            for name, part in self._saved_parts().items():
                part.load_state_dict(cursor[name])
        if self._plan.is_sync:
            self._feed.buffer.begin_at(self.progress.iteration)
        self._feed.buffer.follow_record()

    async def run(self, *, fresh: bool) -> None:
        """Run all remaining iterations. Raises RunStopped."""
        if fresh:
            await self._save_checkpoint()
        if not self.progress.iteration or self._is_evaluation_due():
            await self._evaluate()
        while self.progress.iteration < self._config.trainer.iterations:
            await self._safe_point()
            self._lanes.begin()
            self._machine.reset()
            started = time.monotonic()
            with self._run.probe.phase("rollout"):
                async with self._phases.rollouts():
                    collection = await self._collect()
            self._cursor.observe(self.progress.iteration, map(GroupOutcome.of, collection.groups))
            if self.progress.iteration + 1 < self._config.trainer.iterations:
                self._prefetch.start(self._cursor.peek())
            collected = time.monotonic()
            with self._run.probe.phase("update"):
                sampling = await self.policy.take_metrics()
                async with self._phases.update():
                    result = await self._update(collection)
                    publishing = await self._publish(result)
            await self._announce_checkpoint(self._writer.finished())
            times = {"time/rollout": collected - started, "time/update": time.monotonic() - collected}
            times["time/iteration"] = sum(times.values()) + self._saving_s
            timeline = self._lanes.timeline(collection.keys(), collected=collected)
            with self._run.probe.phase("report"):
                held = self._run.probe.report()
                measured = sampling | publishing | times | self._cursor.metrics()
                await asyncio.to_thread(self._report, collection, result, measured, held, timeline)
            if self._plan.is_due(self.progress.iteration, self._config.trainer.checkpoint_every):
                await self._save_checkpoint()
            if self._is_evaluation_due():
                await self._evaluate()
        await self._announce_checkpoint(await asyncio.to_thread(self._writer.wait))
        await asyncio.to_thread(self._writer.prune, self.progress.scores)

    async def close(self) -> None:
        """Stop background work; a checkpoint being written is finished and announced."""
        await self._feed.close()
        await self._prefetch.close()
        await self.policy.close()
        await asyncio.to_thread(self._writer.close)
        await self._trainer.close()
        await self._announce_checkpoint(self._writer.finished())

    async def _update(self, collection: Collection) -> UpdateResult:
        """Update the policy in the trainer's thread; abandoned as soon as the attempt must end."""
        temperature = self._config.policy.temperature
        return await self._run.interruptible(
            self._trainer.update(collection.trained, temperature=temperature)
        )

    async def _safe_point(self) -> None:
        """Pause if requested, once no rollout is in flight."""
        if self._run.control.desired() == "pause":
            await self._run.interruptible(self._feed.drain())
        await self._run.safe_point()

    async def _collect(self) -> Collection:
        iteration, version = self.progress.iteration, self.progress.policy_version
        task_ids = self._feed.buffer.tasks(iteration)
        self._run.sink.emit(IterationStarted, iteration=iteration, policy_version=version, task_ids=task_ids)
        batch = await self._run.interruptible(self._feed.next_batch(policy_version=version))
        check_losses(batch.groups, f"iteration {iteration} ({TRAIN_PHASE})")
        return batch

    async def _publish(self, result: UpdateResult) -> dict[str, float]:
        """Publish changed weights to the policy under a new version; count the update in any case."""
        metrics: dict[str, float] = {}
        if result.optimizer_steps:
            self.progress.policy_version += 1
            publication = self.policy.publish(self.progress.policy_version, self._trainer)
            with self._feed.new_weights():
                metrics = await self._run.interruptible(publication)
        self._feed.updated()
        return metrics

    def _report(
        self,
        collection: Collection,
        result: UpdateResult,
        measured: Mapping[str, float],
        held: Mapping[str, float],
        timeline: Timeline,
    ) -> None:
        """Record and count a finished iteration; called outside of the event loop's thread."""
        iteration, groups = self.progress.iteration, collection.groups
        algorithm, max_context = self._config.algorithm, self._config.agent.max_context
        masked = [
            discarded_members(group, algorithm, max_context=max_context) for group in collection.discarded
        ]
        for group, members in zip(groups, [*result.members, *masked], strict=True):
            self._run.sink.emit(
                GroupFinished,
                iteration=group.iteration,
                phase=group.phase,
                task_id=group.task.id,
                members=[dataclasses.asdict(member) for member in members],
            )
        self._report_traces(iteration, collection.trained, result)
        rollouts = iteration_metrics(groups)
        metrics = rollouts.metrics() | result.metrics
        if algorithm.dynamic_sampling:
            metrics |= collection.metrics()
        metrics |= {**measured, **held}
        if not self._plan.is_sync:
            version = self.progress.policy_version - bool(result.optimizer_steps)
            size = self._config.rollout.group_size
            metrics |= staleness_metrics(collection.trained, version=version, group_size=size)
        metrics["time/checkpoint"] += self._saving_s
        load = self._machine.load()
        metrics |= load.metrics
        self._alarms.after_iteration(iteration, groups, rollouts, metrics, load)
        self._saving_s = 0.0
        self.progress.iteration += 1
        self.progress.trajectories += sum(len(group.trajectories) for group in groups)
        self.progress.solve_rates.append(metrics["solve/rate"])
        self._run.sink.emit(
            IterationFinished,
            iteration=iteration,
            policy_version=self.progress.policy_version,
            metrics=metrics,
            timeline=timeline,
        )

    def _report_traces(self, iteration: int, trained: Sequence[Group], result: UpdateResult) -> None:
        """Report the traced tokens of an update, with the texts of the sampled ones."""
        if not all(map(math.isfinite, result.losses)):
            return  # the metrics say so
        tokenizer = self._trainer.chat.tokenizer
        trajectories = [trajectory for group in trained for trajectory in group.trajectories]
        for index, trace in result.traces.items():
            if len(trace.record) > MAX_TRACED:
                continue
            trajectory = trajectories[index]
            ids = np.unique(trajectory.tokens.ids[trajectory.tokens.mask]).tolist()
            texts = {token: tokenizer.decode([token]) for token in ids}
            self._run.sink.emit(
                TrajectoryTrained,
                ref=dataclasses.asdict(trajectory.key),
                iteration=iteration,
                step=trace.step,
                losses=result.losses,
                weight=trace.weight,
                tokens=TraceBlock.of(dataclasses.replace(trace.record, texts=texts)),
            )

    def _is_evaluation_due(self) -> bool:
        return self._plan.is_due(self.progress.iteration, self._plan.every)

    async def _evaluate(self) -> None:
        """Evaluate after the checkpoint, so that an attempt that resumes from it keeps the rollouts."""
        settings = self._config.evaluation
        for name, rows, samples in (
            (HELDOUT, self._heldout, settings.samples),
            (TRAIN, self._rows, settings.train_samples),
        ):
            if samples == 0:
                continue
            iteration, phase = self.progress.iteration, f"eval:{name}"
            requests = spread(rows, samples, iteration=iteration, phase=phase)
            ledger = self._evaluated.get((iteration, phase)) or Ledger()
            then = settings.train_samples if name == HELDOUT else 0
            with self._run.probe.phase("evaluation"):
                async with self._phases.evaluation(name, samples, kept=ledger.count, then=then):
                    summary = await run_evaluation(
                        self._run, self._evaluator, requests, self.policy, name=name, ledger=ledger
                    )
            self.progress.add_evaluation(name, summary)

    async def _save_checkpoint(self) -> None:
        """Start a checkpoint; it is written while the next iteration runs."""
        started = time.monotonic()
        with self._run.probe.phase("checkpoint"):
            await self._announce_checkpoint(await asyncio.to_thread(self._writer.wait))
            snapshot = await self._trainer.snapshot(
                self._run.run_dir,
                self.progress.iteration,
                cursor={name: part.state_dict() for name, part in self._saved_parts().items()},
                provenance={
                    "run": self._run.run_id,
                    "recipe": self._config.recipe,
                    "from": self._config.policy.checkpoint,
                    "iterations": self.progress.iteration,
                },
            )
        self._writer.save(snapshot, self.progress.scores)
        self._saving_s = time.monotonic() - started

    async def _announce_checkpoint(self, saved: Checkpoint | None) -> None:
        if saved is None:
            return
        await asyncio.to_thread(
            self._run.sink.emit,
            CheckpointSaved,
            iteration=saved.iteration,
            policy_version=saved.cursor["progress"]["policy_version"],
            path=str(saved.path),
            checksum=saved.checksum,
        )

    def _saved_parts(self) -> dict[str, Saved]:
        parts: dict[str, Saved] = {"progress": self.progress, "tasks": self._cursor, "alarms": self._alarms}
        return parts if self._plan.is_sync else parts | {"feed": self._feed.buffer}
