"""Evaluations: a fixed number of samples spread evenly over fixed tasks, separate from training rollouts."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Mapping, Sequence

from engine.evaluation.metrics import EvaluationSummary
from engine.events.types import EvaluationFinished
from engine.inference.base import Policy
from engine.orchestrator.collection.ledger import Ledger
from engine.orchestrator.context import RunContext
from engine.orchestrator.setup import Losses
from engine.orchestrator.watch.rollout_alarms import RolloutAlarms
from engine.rollout.scheduler import GroupRequest, RolloutScheduler
from engine.rollout.summary import RolloutSummary
from engine.types import TaskRow, Trajectory


def spread(rows: Sequence[TaskRow], samples: int, *, iteration: int, phase: str) -> list[GroupRequest]:
    """Return one request per task: samples divided evenly, or every k-th task when there are fewer samples.

    Example: 5 samples on 3 tasks are groups of 2, 2 and 1; 2 samples on 6 tasks use tasks 0 and 3.
    """
    if samples < len(rows):
        rows = [rows[i * len(rows) // samples] for i in range(samples)]
    base, extra = divmod(samples, len(rows))
    return [
        GroupRequest(row=row, iteration=iteration, phase=phase, size=base + (i < extra))
        for i, row in enumerate(rows)
    ]


async def run_evaluation(
    run: RunContext,
    scheduler: RolloutScheduler,
    requests: Sequence[GroupRequest],
    policy: Policy,
    *,
    name: str,
    ledger: Ledger,
) -> EvaluationSummary:
    """Roll out the samples that ``ledger`` lacks, and record the result as one event.

    The event includes the policy's metrics since they were last taken.

    Args:
        run: this attempt.
        scheduler: scheduler of evaluation rollouts.
        requests: all groups of the evaluation.
        policy: the evaluated policy.
        name: name of the evaluation.
        ledger: rollouts finished by earlier attempts.

    Raises:
        RunStopped, FencedError, DeliveryError: the attempt must end; rollouts in flight are cancelled.
        RolloutsLostError: infrastructure lost all rollouts of this attempt, and most of the evaluation's.
    """
    losses, started = Losses(), time.monotonic()
    iteration = requests[0].iteration
    instances = {request.row.task.id: request.row.task.instance_id for request in requests}
    alarms = RolloutAlarms(run, iteration=iteration, instances=instances)

    def finished(trajectory: Trajectory) -> None:
        ledger.add(RolloutSummary.of(trajectory))
        losses.add(trajectory)

    if not ledger.is_reported:
        rollouts = (rollout for request in requests for rollout in request.rollouts())
        missing = (rollout for rollout in rollouts if not ledger.has(rollout.key))
        await run.interruptible(scheduler.run(missing, finished))
    lost = tuple(ledger.lost.values())
    totals = ledger.close()
    if 2 * totals.lost > totals.count:
        losses.check(f"iteration {iteration} (eval:{name})")
    alarms.check(totals, lost, ended=True)
    summary = totals.tally.summary()
    if ledger.is_reported:
        return summary
    metrics = totals.metrics() | await policy.take_metrics() | alarms.machine_load().metrics
    metrics["time/rollout"] = time.monotonic() - started
    await asyncio.to_thread(
        report_evaluation,
        run,
        summary,
        iteration=iteration,
        name=name,
        policy_version=policy.version,
        metrics=metrics,
    )
    return summary


def report_evaluation(
    run: RunContext,
    summary: EvaluationSummary,
    *,
    iteration: int,
    name: str,
    policy_version: int,
    metrics: Mapping[str, float],
) -> None:
    """Record the result of an evaluation."""
    run.sink.emit(
        EvaluationFinished,
        iteration=iteration,
        name=name,
        policy_version=policy_version,
        num_samples=summary.num_samples,
        num_tasks=summary.num_tasks,
        num_solved=summary.num_solved,
        solve_rate=summary.solve_rate,
        interval_low=summary.interval_low,
        interval_high=summary.interval_high,
        pass_at_k=[dataclasses.asdict(entry) for entry in summary.pass_at_k],
        metrics=metrics,
    )
