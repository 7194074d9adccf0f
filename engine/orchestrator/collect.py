"""Runs without updates: graded trajectories of a split, or an evaluation of a policy on it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from engine.config.run import EvaluateRun, RolloutRun
from engine.events.types import IterationFinished, IterationStarted
from engine.orchestrator.alarms import Alarms
from engine.orchestrator.context import RunContext, RunResult
from engine.orchestrator.evaluations import run_evaluation
from engine.orchestrator.event_observer import TRAIN_PHASE
from engine.orchestrator.metrics import iteration_metrics
from engine.orchestrator.policies import open_policy
from engine.orchestrator.selection import run_rows
from engine.orchestrator.setup import (
    announce,
    build_scheduler,
    collect_groups,
    open_environments,
    peak_memory_mb,
)
from engine.orchestrator.warm_start import with_start_policy
from engine.rollout.scheduler import GroupRequest


async def rollout(config: RolloutRun, run: RunContext) -> RunResult:
    """Sample every task of the split ``group_size`` times, as one iteration without an update."""
    started = time.monotonic()
    announce(run, total_iterations=1)
    config = await with_start_policy(config, run)
    requests = await asyncio.to_thread(_requests, config, run, TRAIN_PHASE)
    policy = await asyncio.to_thread(open_policy, config.policy, config.agent, run.home)
    try:
        environments = await open_environments(config, run)
        run.sink.emit(
            IterationStarted,
            iteration=0,
            policy_version=policy.version,
            task_ids=[request.row.task.id for request in requests],
        )
        scheduler = build_scheduler(config, run, environments, policy)
        with run.probe.phase("rollout"):
            groups = await collect_groups(run, scheduler, requests)
    finally:
        await policy.close()
    seconds, held = time.monotonic() - started, run.probe.report()
    metrics = await asyncio.to_thread(iteration_metrics, groups)
    metrics |= {"time/rollout": seconds, "time/iteration": seconds, **held.metrics}
    alarms = Alarms(run)
    alarms.after_iteration(0, groups, metrics)
    alarms.loop_held(0, held)
    await asyncio.to_thread(
        run.sink.emit, IterationFinished, iteration=0, policy_version=policy.version, metrics=metrics
    )
    return RunResult(
        state="succeeded",
        summary={
            "iterations": 1,
            "trajectories": sum(len(group.trajectories) for group in groups),
            "solve_rate_last": metrics["solve/rate"],
            **_cost(started),
        },
    )


async def evaluate(config: EvaluateRun, run: RunContext) -> RunResult:
    """Measure pass@1 of the policy on the split with ``group_size`` attempts per task."""
    started = time.monotonic()
    announce(run)
    config = await with_start_policy(config, run)
    split = config.dataset.split
    requests = await asyncio.to_thread(_requests, config, run, f"eval:{split}")
    policy = await asyncio.to_thread(open_policy, config.policy, config.agent, run.home)
    try:
        environments = await open_environments(config, run)
        scheduler = build_scheduler(config, run, environments, policy)
        with run.probe.phase("evaluation"):
            summary = await run_evaluation(
                run, scheduler, requests, name=split, policy_version=policy.version
            )
    finally:
        await policy.close()
    return RunResult(
        state="succeeded",
        summary={
            "trajectories": summary.num_samples,
            "solve_rate_last": summary.solve_rate,
            "interval_low": summary.interval_low,
            "interval_high": summary.interval_high,
            **_cost(started),
        },
    )


def _requests(config: RolloutRun | EvaluateRun, run: RunContext, phase: str) -> Sequence[GroupRequest]:
    return [
        GroupRequest(row=row, iteration=0, phase=phase, size=config.rollout.group_size)
        for row in run_rows(config, run)
    ]


def _cost(started: float) -> dict[str, float | int | str | None]:
    return {
        "seconds": round(time.monotonic() - started, 1),
        "peak_memory_mb": round(peak_memory_mb(), 1),
    }
