"""Evaluations: a fixed number of samples spread evenly over fixed tasks, apart from the training stream."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence

from engine.evaluation.metrics import EvaluationSummary, summarise
from engine.events.types import EvaluationFinished
from engine.orchestrator.context import RunContext
from engine.orchestrator.setup import collect_groups
from engine.rollout.scheduler import GroupRequest, RolloutScheduler
from engine.types import TaskRow


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
    *,
    name: str,
    policy_version: int,
) -> EvaluationSummary:
    """Collect the requests and record the result as one event."""
    groups = await collect_groups(run, scheduler, requests)
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    summary = await asyncio.to_thread(summarise, trajectories)
    await asyncio.to_thread(
        run.sink.emit,
        EvaluationFinished,
        iteration=requests[0].iteration,
        name=name,
        policy_version=policy_version,
        num_samples=summary.num_samples,
        num_tasks=summary.num_tasks,
        num_solved=summary.num_solved,
        solve_rate=summary.solve_rate,
        interval_low=summary.interval_low,
        interval_high=summary.interval_high,
        pass_at_k=[dataclasses.asdict(entry) for entry in summary.pass_at_k],
    )
    return summary
