"""Runs without updates: graded trajectories of a split, or an evaluation of a policy on it.

Finished rollouts are stored in the spool only: an attempt after a kill reads them and rolls out the rest.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TypeVar

from engine.config.run import EvaluateRun, RolloutRun
from engine.errors import SpendLimitError
from engine.events.delivery.spool import SPOOL_NAME
from engine.events.types import IterationFinished, IterationStarted
from engine.orchestrator.collection.collector import Collector
from engine.orchestrator.collection.first_rollouts import FirstRollouts
from engine.orchestrator.collection.ledger import Ledger
from engine.orchestrator.collection.plan import planned_groups
from engine.orchestrator.collection.rollout_lines import in_flight
from engine.orchestrator.context import RunContext, RunResult, RunStopped
from engine.orchestrator.evaluations import report_evaluation
from engine.orchestrator.policies.policies import open_run_policy
from engine.orchestrator.policies.warm_start import with_start_policy
from engine.orchestrator.setup import (
    OPENING,
    announce,
    build_scheduler,
    open_environments,
    peak_memory_mb,
)
from engine.orchestrator.watch.event_observer import TRAIN_PHASE

Sampling = TypeVar("Sampling", RolloutRun, EvaluateRun)
Summary = dict[str, float | int | str | None]


async def rollout(config: RolloutRun, run: RunContext) -> RunResult:
    """Sample every planned task ``group_size`` times, as one iteration without an update."""
    started = time.monotonic()
    ledger = await _resume(run, total_iterations=1)
    try:
        version, sampling = await _collect(config, run, ledger, TRAIN_PHASE)
    except (RunStopped, SpendLimitError) as stop:
        return RunResult.of_stop(stop, _summary(run, ledger, started, TRAIN_PHASE))
    metrics = _metrics(run, ledger, sampling, started)
    metrics["time/iteration"] = metrics["time/rollout"]
    await asyncio.to_thread(
        run.sink.emit, IterationFinished, iteration=0, policy_version=version, metrics=metrics
    )
    counts = _summary(run, ledger, started, TRAIN_PHASE)
    summary = {"iterations": 1, "solve_rate_last": metrics["solve/rate"], **counts}
    return RunResult(state="succeeded", summary=summary)


async def evaluate(config: EvaluateRun, run: RunContext) -> RunResult:
    """Measure pass@k of the policy on the split with ``group_size`` attempts per task."""
    started = time.monotonic()
    ledger = await _resume(run)
    split = config.dataset.split
    phase = f"eval:{split}"
    try:
        version, sampling = await _collect(config, run, ledger, phase)
    except (RunStopped, SpendLimitError) as stop:
        return RunResult.of_stop(stop, _summary(run, ledger, started, phase))
    result = ledger.metrics.tally.summary()
    metrics = _metrics(run, ledger, sampling, started)
    await asyncio.to_thread(
        report_evaluation, run, result, iteration=0, name=split, policy_version=version, metrics=metrics
    )
    summary = {
        **_summary(run, ledger, started, phase),
        "trajectories": result.num_samples,
        "solve_rate_last": result.solve_rate,
        "interval_low": result.interval_low,
        "interval_high": result.interval_high,
    }
    return RunResult(state="succeeded", summary=summary)


async def _resume(run: RunContext, *, total_iterations: int = 0) -> Ledger:
    """Read the rollouts finished by earlier attempts, and record the start of this one."""
    ledger = await asyncio.to_thread(Ledger.read, run.run_dir / SPOOL_NAME)
    announce(run, rollouts_kept=ledger.count, total_iterations=total_iterations)
    return ledger


async def _collect(
    config: Sampling, run: RunContext, ledger: Ledger, phase: str
) -> tuple[int, dict[str, float]]:
    """Collect the rollouts that ``ledger`` lacks; return policy version, policy metrics and machine load."""
    config = await with_start_policy(config, run)
    groups = await asyncio.to_thread(planned_groups, config, run, phase)
    run.progress(OPENING, 0, 0)
    policy = await open_run_policy(config.policy, config.agent, run)
    try:
        environments = await open_environments(config, run)
        if phase == TRAIN_PHASE:
            task_ids = [group.row.task.id for group in groups]
            run.sink.emit(IterationStarted, iteration=0, policy_version=policy.version, task_ids=task_ids)
        recorded = await in_flight(config.rollout, run.run_dir / SPOOL_NAME)
        first = FirstRollouts.of(
            config.policy,
            config.collection.early_stop,
            agent=config.agent,
            tools=environments.factory.tools,
        )
        collector = Collector(
            run,
            build_scheduler(config, run, environments, policy),
            groups,
            ledger,
            infra_retries=config.collection.infra_retries,
            max_concurrent=config.rollout.max_concurrent,
            recorded=recorded,
            first=first,
        )
        with run.probe.phase("rollout"):
            await collector.collect()
        return policy.version, await policy.take_metrics() | collector.load.metrics
    finally:
        await policy.close()


def _metrics(
    run: RunContext, ledger: Ledger, sampling: Mapping[str, float], started: float
) -> dict[str, float]:
    """Return the metrics of all rollouts, of the policy and machine, and of this attempt."""
    metrics = {**ledger.metrics.metrics(), **sampling, **run.probe.report()}
    metrics["time/rollout"] = time.monotonic() - started
    if ledger.cost is not None:
        metrics["cost/total"] = ledger.cost
    return metrics


def _summary(run: RunContext, ledger: Ledger, started: float, phase: str) -> Summary:
    return {
        **run.rollouts.calls(phase).summary(),
        "trajectories": ledger.metrics.count,
        "excluded": ledger.metrics.lost,
        "cost": ledger.cost,
        "seconds": round(time.monotonic() - started, 1),
        "peak_memory_mb": round(peak_memory_mb(), 1),
    }
