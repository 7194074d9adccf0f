"""Self-improvement by rejection sampling.

    run_started
    for n in rounds:
        evaluate at n    held-out tasks
        collect          iteration n: group_size rollouts of every task, graded
        keep             some of those that passed ─▶ rounds/<n + 1>/trajectories.jsonl
        fine-tune        the first or the previous policy on them ─▶ checkpoint n + 1
        report           iteration_finished
    evaluate at the end
    run_finished

An attempt after a kill continues where it stopped: the spool records the finished rollouts, evaluations and
rounds. A round's folder has the kept rollouts, their metrics, and the last checkpoint of its fine-tuning. The
first selection is final, also if rollouts of the round were lost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from engine.config.learning.training import HeldoutConfig
from engine.config.rollout import EARLY_STOP
from engine.config.run import ImproveRun
from engine.errors import DatasetError
from engine.events.delivery.spool import SPOOL_NAME
from engine.events.stored_trajectories import TRAJECTORIES_FILE, write_trajectories
from engine.events.types import CheckpointSaved, IterationFinished, IterationStarted
from engine.inference.base import Policy
from engine.models.frozen import freeze_policy
from engine.orchestrator.collection.collector import Collector
from engine.orchestrator.collection.first_rollouts import FirstRollouts
from engine.orchestrator.collection.ledger import Ledger
from engine.orchestrator.collection.rollout_lines import in_flight
from engine.orchestrator.context import RunContext, RunResult, RunStopped
from engine.orchestrator.evaluations import report_evaluation, spread
from engine.orchestrator.improvement.kept import choose_kept, read_kept
from engine.orchestrator.improvement.rounds import (
    Record,
    clean,
    policy_folder,
    publish,
    record_sampled,
    round_folder,
    sampled_metrics,
    tune,
)
from engine.orchestrator.policies.policies import open_run_policy
from engine.orchestrator.policies.warm_start import with_start_policy
from engine.orchestrator.setup import (
    RunEnvironments,
    announce,
    build_scheduler,
    open_environments,
    peak_memory_mb,
)
from engine.orchestrator.tasks.selection import evaluation_rows, run_rows
from engine.orchestrator.training.progress import HELDOUT
from engine.orchestrator.watch.event_observer import TRAIN_PHASE
from engine.rollout.scheduler import GroupRequest
from engine.types import TaskRow

_INFRA_RETRIES = 1
"""Number of times that rollouts lost to infrastructure are repeated, after all others of their phase."""


async def improve(config: ImproveRun, run: RunContext) -> RunResult:
    """Perform all rounds that earlier attempts have not finished."""
    started = time.monotonic()
    record = await asyncio.to_thread(Record.read, run.run_dir / SPOOL_NAME)
    announce(
        run,
        resumed_from=len(record.metrics) or None,
        rollouts_kept=record.rollouts,
        total_iterations=config.improvement.rounds,
    )
    config = await with_start_policy(config, run)
    loop = ImprovementLoop(config, run, record)
    try:
        await loop.run()
    except RunStopped as stop:
        return RunResult(state="stopped", reason=str(stop), summary=loop.summary(started))
    return RunResult(state="succeeded", summary=loop.summary(started))


class ImprovementLoop:
    """Rounds of one attempt.

    Args:
        config: the run's configuration.
        run: this attempt.
        record: results of earlier attempts.
    """

    def __init__(self, config: ImproveRun, run: RunContext, record: Record) -> None:
        self._config, self._run, self._record = config, run, record
        self._spool = run.run_dir / SPOOL_NAME
        self._rows: Sequence[TaskRow] = ()
        self._heldout: Sequence[TaskRow] = ()
        self._environments: RunEnvironments | None = None

    async def run(self) -> None:
        """Perform the remaining rounds.

        Raises:
            RunStopped, FencedError, DeliveryError: the attempt must end.
            DatasetError: no rollout can be kept, or none of the kept ones can be trained on.
            RolloutsLostError: infrastructure lost all rollouts of a phase.
        """
        config, run = self._config, self._run
        self._rows = await asyncio.to_thread(run_rows, config, run)
        self._heldout = await asyncio.to_thread(evaluation_rows, config, run)
        start = policy_folder(run.run_dir, 0)
        await asyncio.to_thread(freeze_policy, config.policy.checkpoint, start, home=run.home)
        for number in self._record.metrics:  # a killed attempt may not have cleaned up
            await asyncio.to_thread(clean, run.run_dir, number)
        rounds = config.improvement.rounds
        for number in range(len(self._record.metrics), rounds):
            await self._improve(number)
        if rounds not in self._record.evaluations:
            policy = await self._open_policy(rounds)
            try:
                await self._evaluate(policy, rounds)
            finally:
                await policy.close()

    async def _improve(self, number: int) -> None:
        """Perform a round: sample, keep, fine-tune, report."""
        run, started = self._run, time.monotonic()
        recorded = await asyncio.to_thread(sampled_metrics, run.run_dir, number)
        if recorded is None:
            metrics = await self._sample_and_keep(number)
        else:
            self._announce_round(number)
            metrics = dict(recorded)
        sampled = time.monotonic()
        with run.probe.phase("update"):
            tuned = await tune(self._config, run, number)
        metrics |= _losses(tuned)
        checkpoint = await asyncio.to_thread(publish, run.run_dir, number, home=run.home)
        saved = {"path": str(checkpoint.path), "checksum": checkpoint.checksum}
        loop_metrics = run.probe.report()
        ended = time.monotonic()
        metrics |= {"time/update": ended - sampled, "time/iteration": ended - started, **loop_metrics}
        run.sink.emit(CheckpointSaved, iteration=number + 1, policy_version=number + 1, **saved)
        run.sink.emit(IterationFinished, iteration=number, policy_version=number + 1, metrics=metrics)
        self._record.metrics[number] = metrics
        await asyncio.to_thread(clean, run.run_dir, number)

    async def _sample_and_keep(self, number: int) -> dict[str, float]:
        """Write a round's training data; return metrics of the rollouts and counts of those kept."""
        metrics = await self._sample(number)
        metrics |= await self._run.interruptible(asyncio.to_thread(self._keep, number))
        await asyncio.to_thread(record_sampled, self._run.run_dir, number, metrics)
        return metrics

    async def _sample(self, number: int) -> dict[str, float]:
        """Evaluate the policy of a round and roll it out; return metrics of the rollouts and the policy."""
        size, started = self._config.rollout.group_size, time.monotonic()
        policy = await self._open_policy(number)
        try:
            if number not in self._record.evaluations:
                await self._evaluate(policy, number)
            groups = [
                GroupRequest(row=row, iteration=number, phase=TRAIN_PHASE, size=size) for row in self._rows
            ]
            self._announce_round(number)
            _, metrics = await self._collect(policy, groups)
            return metrics | {"time/rollout": time.monotonic() - started}
        finally:
            await policy.close()

    def _announce_round(self, number: int) -> None:
        tasks = [row.task.id for row in self._rows]
        self._run.sink.emit(IterationStarted, iteration=number, policy_version=number, task_ids=tasks)

    async def _evaluate(self, policy: Policy, number: int) -> None:
        settings = self._config.evaluation
        phase = f"eval:{HELDOUT}"
        requests = spread(self._heldout, settings.samples, iteration=number, phase=phase)
        ledger, metrics = await self._collect(policy, requests, evaluation=settings)
        summary = ledger.metrics.tally.summary()
        await asyncio.to_thread(
            report_evaluation,
            self._run,
            summary,
            iteration=number,
            name=HELDOUT,
            policy_version=number,
            metrics=metrics,
        )
        self._record.evaluations[number] = {
            "solve_rate": summary.solve_rate,
            "interval_low": summary.interval_low,
            "interval_high": summary.interval_high,
        }

    async def _collect(
        self, policy: Policy, groups: Sequence[GroupRequest], *, evaluation: HeldoutConfig | None = None
    ) -> tuple[Ledger, dict[str, float]]:
        """Roll out and grade the unfinished rollouts; return all with their metrics."""
        run, first = self._run, groups[0]
        if self._environments is None:
            self._environments = await open_environments(self._config, run)
        ledger = await asyncio.to_thread(Ledger.read, self._spool, part=(first.iteration, first.phase))
        recorded = await in_flight(self._config.rollout, self._spool)
        scheduler = build_scheduler(self._config, run, self._environments, policy, evaluation=evaluation)
        collector = Collector(
            run,
            scheduler,
            groups,
            ledger,
            infra_retries=_INFRA_RETRIES,
            max_concurrent=self._config.rollout.max_concurrent,
            recorded=recorded,
            first=self._watch() if first.iteration == 0 and evaluation is None else None,
            message="rollouts" if evaluation is None else "evaluation",
            follows=self._follows(first.iteration, evaluates=evaluation is not None),
        )
        with run.probe.phase("rollout" if evaluation is None else "evaluation"):
            await collector.collect()
        metrics = ledger.metrics.metrics() | await policy.take_metrics() | collector.load.metrics
        return ledger, metrics

    def _follows(self, number: int, *, evaluates: bool) -> str:
        """Return the names of the phases after a round's evaluation or rollouts."""
        rounds = self._config.improvement.rounds
        if number == rounds:
            return ""
        later = rounds - number - 1
        parts = [*(["rollouts"] if evaluates else []), "fine-tuning"]
        parts += [f"{later} round{'s' * (later > 1)}"] if later else []
        return ", ".join([*parts, "evaluation"])

    def _watch(self) -> FirstRollouts | None:
        """Return the check of the first round's rollouts."""
        assert self._environments is not None
        tools = self._environments.factory.tools
        return FirstRollouts.of(self._config.policy, EARLY_STOP, agent=self._config.agent, tools=tools)

    async def _open_policy(self, rounds: int) -> Policy:
        """Open the policy after ``rounds`` rounds."""
        checkpoint = str(policy_folder(self._run.run_dir, rounds))
        policy = self._config.policy.model_copy(update={"checkpoint": checkpoint})
        return await open_run_policy(policy, self._config.agent, self._run, version=rounds)

    def _keep(self, number: int) -> dict[str, float]:
        """Write a round's training data; return counts."""
        config, run = self._config.improvement, self._run
        selected = choose_kept(self._spool, config, number=number, seed=self._config.seed, check=run.check)
        kept = selected.chosen
        if not kept:
            raise DatasetError(
                f"no rollout of round {number + 1} can be kept: none passed and ended by "
                f"{' or '.join(config.terminations) or 'any reason'}; raise rollout.group_size or "
                "policy.temperature, or start from a better policy"
            )
        path: Path = round_folder(run.run_dir, number) / TRAJECTORIES_FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = {row.task.id: row for row in self._rows}
        model = self._config.policy.checkpoint
        write_trajectories(
            path, read_kept(self._spool, kept, rows, run_id=run.run_id, model=model, check=run.check)
        )
        return {
            "kept/trajectories": float(len(kept)),
            "kept/tasks": float(len({rollout.task_key for rollout in kept})),
            "kept/duplicates": float(selected.duplicates),
            "kept/over_cap": float(selected.over_cap),
        }

    def summary(self, started: float) -> dict[str, float | int | str | None]:
        """Return the headline numbers of all attempts; ``started`` is when this one began."""
        record = self._record
        numbers: dict[str, float | int | str | None] = {
            "iterations": len(record.metrics),
            "seconds": round(time.monotonic() - started, 1),
            "peak_memory_mb": round(peak_memory_mb(), 1),
        }
        for label, pick in (("first", min), ("last", max)):
            if record.metrics:
                numbers[f"solve_rate_{label}"] = record.metrics[pick(record.metrics)]["solve/rate"]
            if record.evaluations:
                evaluation = record.evaluations[pick(record.evaluations)]
                numbers[f"heldout_{label}"] = evaluation["solve_rate"]
                numbers[f"heldout_{label}_low"] = evaluation["interval_low"]
                numbers[f"heldout_{label}_high"] = evaluation["interval_high"]
        return numbers


def _losses(tuned: Mapping[str, float | int | str | None]) -> dict[str, float]:
    """Return the metrics of a round's fine-tuning from its summary."""
    names = {
        "train_loss": "loss/value",
        "heldout_loss": "loss/heldout",
        "heldout_loss_before": "loss/heldout_before",
        "steps": "update/steps",
        "sampled_tokens": "tokens/trained",
    }
    return {
        metric: float(value)
        for name, metric in names.items()
        if isinstance(value := tuned.get(name), int | float)
    }
