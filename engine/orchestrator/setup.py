"""Setup of rollouts from a configuration: tasks, environments, sandbox backend, scheduler.

To add an environment: a case in ``load_rows`` and ``open_environments``.
"""

from __future__ import annotations

import os
import resource
import socket
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import structlog

from engine.config.environment import FrozenLakeConfig
from engine.config.policies import TransformerPolicyConfig
from engine.config.run import EvaluateRun, RolloutRun, TrainRun
from engine.config.sandbox import SandboxConfig
from engine.datasets.store import dataset_path, load_dataset, save_dataset
from engine.environments.base import EnvironmentFactory
from engine.environments.frozenlake_maps import frozenlake_provenance, frozenlake_rows
from engine.errors import RolloutsLostError
from engine.events.types import RunStarted
from engine.grading.grader import Grader
from engine.inference.base import Policy, SamplingParams
from engine.orchestrator.context import RunContext
from engine.orchestrator.event_observer import EventObserver
from engine.orchestrator.metrics import is_infrastructure
from engine.rollout.environments import FrozenLakeEnvironments, SweEnvironments
from engine.rollout.scheduler import GroupRequest, RolloutScheduler
from engine.sandbox.backends import make_backend
from engine.sandbox.pool.pool import SandboxPool
from engine.sandbox.preflight import require
from engine.types import Group, TaskRow, Trajectory

log = structlog.get_logger("orchestrator")
ActingRun = TrainRun | RolloutRun | EvaluateRun


def announce(run: RunContext, *, resumed_from: int | None = None, total_iterations: int = 0) -> None:
    """Record the attempt's first event."""
    run.sink.emit(
        RunStarted,
        host=socket.gethostname(),
        pid=os.getpid(),
        resumed_from=resumed_from,
        total_iterations=total_iterations,
    )


def load_rows(config: ActingRun, home: Path, split: str) -> Sequence[TaskRow]:
    """Return all tasks of one of the run's splits, generated now if the environment makes its own tasks.

    Raises:
        DatasetError: there are none.
    """
    name = config.dataset.name
    if isinstance(config.environment, FrozenLakeConfig) and not dataset_path(home, name).exists():
        _save_once(home, name, config.environment)
    return load_dataset(home, name).split(split)


def _save_once(home: Path, name: str, lake: FrozenLakeConfig) -> None:
    """Store generated tasks; safe when another run does the same at the same time."""
    try:
        save_dataset(home, name, frozenlake_rows(lake), frozenlake_provenance(lake))
    except OSError:
        if not dataset_path(home, name).exists():
            raise


async def open_backend(config: SandboxConfig, run: RunContext) -> SandboxPool:
    """Open the run's pool over a backend that works on this machine; remove earlier attempts' sandboxes.

    It is closed with ``run.closing``.

    Raises:
        PreflightError: lists everything that the machine lacks.
    """
    backend = make_backend(config, run.home)
    for finding in await require(backend):
        log.warning("sandbox_preflight", finding=finding.message)
    pool = SandboxPool(backend, config, sink=run.sink)
    run.closing.push_async_callback(pool.close)
    await pool.reap(run_id=run.run_id)
    return pool


async def open_environments(config: ActingRun, run: RunContext) -> EnvironmentFactory:
    """Open the environments of the run's agents.

    Raises:
        PreflightError: lists everything that the machine lacks.
    """
    if isinstance(config.environment, FrozenLakeConfig):
        return FrozenLakeEnvironments(agent=config.agent)
    pool = await open_backend(config.sandbox, run)
    return SweEnvironments(
        pool=pool,
        grader=Grader(backend=pool, config=config.grading, sandbox=config.sandbox, run_id=run.run_id),
        agent=config.agent,
        sandbox=config.sandbox,
        run_id=run.run_id,
    )


def build_scheduler(
    config: ActingRun, run: RunContext, environments: EnvironmentFactory, policy: Policy
) -> RolloutScheduler:
    """Return a scheduler whose rollouts are recorded as this run's events."""
    sampling = SamplingParams()
    if isinstance(config.policy, TransformerPolicyConfig):
        sampling = SamplingParams(
            temperature=config.policy.temperature,
            top_p=config.policy.top_p,
            top_k=config.policy.top_k,
            min_p=config.policy.min_p,
        )
    observer = EventObserver(run.sink, observe_duration=environments.observe_duration)
    run.closing.callback(observer.close)
    return RolloutScheduler(
        environments=environments,
        policy=policy,
        agent=config.agent,
        rollout=config.rollout,
        seed=config.seed,
        observer=observer,
        sampling=sampling,
    )


def peak_memory_mb() -> float:
    """Return the peak resident size of this process, MiB; sandboxes have limits of their own.

    Children are left out: Linux counts a forked child at its parent's size, which would count it twice.
    """
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def collect_groups(
    run: RunContext, scheduler: RolloutScheduler, requests: Sequence[GroupRequest]
) -> list[Group]:
    """Roll out and grade the requested groups, in their order.

    Raises:
        RunStopped, FencedError, DeliveryError: the attempt must end; what is in flight is dropped.
        RolloutsLostError: not one rollout could run and be graded; names the most frequent reason.
    """
    groups = await run.interruptible(scheduler.collect(requests))
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    if trajectories and all(is_infrastructure(trajectory) for trajectory in trajectories):
        whys = Counter(_why_lost(trajectory) for trajectory in trajectories)
        ((why, _),) = whys.most_common(1)
        where = f"iteration {requests[0].iteration} ({requests[0].phase})"
        raise RolloutsLostError(
            f"infrastructure lost all {len(trajectories)} rollouts of {where}: {why}; "
            "the run goes on from its last checkpoint when it is resumed"
        )
    return groups


def _why_lost(trajectory: Trajectory) -> str:
    return trajectory.error or (trajectory.grade.detail if trajectory.grade is not None else "")
