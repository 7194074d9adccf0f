"""Setup of rollouts from a configuration: tasks, environments, sandbox backend, scheduler.

To add an environment: a case in ``load_rows`` and ``open_environments``.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import structlog

from engine.config.environment import FrozenLakeConfig, ReproductionConfig
from engine.config.learning.training import HeldoutConfig
from engine.config.placement import worker_bundles
from engine.config.policies import EndpointPolicyConfig, PolicyConfig, TransformerPolicyConfig
from engine.config.run import EvaluateRun, ImproveRun, RolloutRun, TrainRun
from engine.config.sandbox import SandboxConfig
from engine.datasets.kept_files import using
from engine.datasets.store import dataset_path, load_dataset, save_dataset
from engine.environments.base import EnvironmentFactory
from engine.environments.frozenlake_maps import frozenlake_provenance, frozenlake_rows
from engine.errors import RolloutsLostError
from engine.events.types import RunStarted
from engine.grading.counterfactual.store import FileReferences
from engine.grading.grader import Grader
from engine.inference.base import Policy, SamplingParams
from engine.inference.endpoint.messages import configured_sampling
from engine.orchestrator.context import RunContext
from engine.orchestrator.watch.event_observer import EventObserver
from engine.orchestrator.watch.metrics import is_infrastructure
from engine.orchestrator.watch.phase_lanes import PhaseLanes
from engine.orchestrator.watch.system import SystemSampler
from engine.processes.launchers import LocalProcesses, ProcessLauncher
from engine.ray.launcher import RayProcesses
from engine.rollout.environments import (
    FrozenLakeEnvironments,
    RolloutGrader,
    SweEnvironments,
    wanted_images,
)
from engine.rollout.processes.environments import FrozenLakeSettings, SweSettings
from engine.rollout.processes.workers import RolloutWorkers, WorkerSettings
from engine.rollout.scheduler import RolloutScheduler
from engine.sandbox.backends import make_backend
from engine.sandbox.pool.pool import SandboxPool
from engine.sandbox.preflight import require
from engine.testing.toolchain import update_toolchains
from engine.types import Group, TaskRow, Trajectory
from engine.verifiers.execution_based.commands import visible_row
from engine.verifiers.execution_based.runs import TestRuns
from engine.verifiers.execution_based.testing_agent import KeepRuleGrader

log = structlog.get_logger("orchestrator")
OPENING = "opening the policy"
"""Name of the phase in which a model is loaded or an endpoint is tried, in progress reports."""
ActingRun = TrainRun | ImproveRun | RolloutRun | EvaluateRun


def announce(
    run: RunContext,
    *,
    resumed_from: int | None = None,
    rollouts_kept: int | None = None,
    total_iterations: int = 0,
) -> None:
    """Record the attempt's first event; from then on, sample the machine until ``run.closing``."""
    run.sink.emit(
        RunStarted,
        host=socket.gethostname(),
        pid=os.getpid(),
        resumed_from=resumed_from,
        rollouts_kept=rollouts_kept,
        total_iterations=total_iterations,
    )
    run.closing.enter_context(SystemSampler(run.run_dir, run.sink))


def load_rows(config: ActingRun, home: Path, name: str, split: str) -> Sequence[TaskRow]:
    """Return all tasks of a dataset's split, generated now if the environment makes its own tasks.

    Testing agents and their policy get tasks without answers.

    Raises:
        DatasetError: there are none.
    """
    if isinstance(config.environment, FrozenLakeConfig) and not dataset_path(home, name).exists():
        _save_once(home, name, config.environment)
    rows = load_dataset(home, name).split(split)
    if isinstance(config.environment, ReproductionConfig):
        return [visible_row(row) for row in rows]
    return rows


def _save_once(home: Path, name: str, lake: FrozenLakeConfig) -> None:
    """Store generated tasks; safe when another run does the same at the same time."""
    try:
        save_dataset(home, name, frozenlake_rows(lake), frozenlake_provenance(lake))
    except OSError:
        if not dataset_path(home, name).exists():
            raise


async def open_backend(config: SandboxConfig, run: RunContext) -> SandboxPool:
    """Open the run's pool over a backend that works on this machine; remove earlier attempts' sandboxes.

    Test tools in cached images are updated first. No image is removed until ``run.closing``, with which the
    pool is closed.

    Raises:
        PreflightError: lists everything that the machine lacks.
    """
    await run.closing.enter_async_context(using(run.home))
    await asyncio.to_thread(update_toolchains, run.home)
    backend = make_backend(config, run.home, run_id=run.run_id)
    for finding in await require(backend):
        log.warning("sandbox_preflight", finding=finding.message)
    pool = SandboxPool(backend, config, sink=run.sink)
    run.closing.push_async_callback(pool.close)
    await pool.reap(run_id=run.run_id)
    return pool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnvironments:
    """Environments of the run's agents, and the processes in which its rollouts run."""

    factory: EnvironmentFactory
    workers: RolloutWorkers | None = None
    """None: this process."""

    async def prepare(self, rows: Sequence[TaskRow], *, group_size: int) -> None:
        """Prepare the environments of these tasks' groups, best effort."""
        await self.factory.prepare(rows, group_size=group_size)
        if self.workers is not None:
            self.workers.prepare(wanted_images(rows, group_size=group_size))


async def open_environments(config: ActingRun, run: RunContext) -> RunEnvironments:
    """Open the environments of the run's agents.

    Raises:
        PreflightError: lists everything that the machine lacks.
        WorkersLostError: a rollout worker does not start.
    """
    if isinstance(config.environment, FrozenLakeConfig):
        lakes = FrozenLakeEnvironments(agent=config.agent)
        return RunEnvironments(factory=lakes, workers=await _open_workers(config, run, None))
    pool = await open_backend(config.sandbox, run)
    environments = SweEnvironments(
        pool=pool,
        grader=_grader(config, run, pool),
        agent=config.agent,
        sandbox=config.sandbox,
        run_id=run.run_id,
    )
    return RunEnvironments(factory=environments, workers=await _open_workers(config, run, environments))


async def _open_workers(
    config: ActingRun, run: RunContext, shared: SweEnvironments | None
) -> RolloutWorkers | None:
    """Start the run's rollout workers, which share pool and grader of ``shared``; None without workers."""
    if config.rollout.workers == 1:
        return None
    grading = None if isinstance(config.environment, ReproductionConfig) else config.grading
    launcher: ProcessLauncher = LocalProcesses()
    if config.rollout.launcher == "ray":
        bundles = worker_bundles(config.rollout)
        launcher = RayProcesses(bundles, name="rollout workers", notice=run.notice())
    workers = RolloutWorkers(
        WorkerSettings(
            count=config.rollout.workers,
            launcher=launcher,
            environments=FrozenLakeSettings(agent=config.agent)
            if shared is None
            else SweSettings(
                agent=config.agent,
                sandbox=config.sandbox,
                home=run.home,
                run_id=run.run_id,
                grading=grading,
            ),
            memory_mb=config.rollout.worker_memory_mb,
            pool=None if shared is None else shared.pool,
            grader=None if shared is None else shared.grader,
            run_id=run.run_id,
            on_loss=partial(run.alert, "warning", "rollout_worker_lost"),
        )
    )
    run.closing.push_async_callback(workers.close)
    await run.interruptible(workers.open())
    return workers


def _grader(config: ActingRun, run: RunContext, pool: SandboxPool) -> RolloutGrader:
    """Return the grader of submissions: hidden tests, or the keep rule for testing agents."""
    if isinstance(config.environment, ReproductionConfig):
        return KeepRuleGrader(
            TestRuns(
                backend=pool,
                sandbox=config.sandbox,
                run_id=run.run_id,
                timeout_s=config.grading.timeout_s,
                max_parallel=config.grading.max_parallel,
            )
        )
    return Grader(
        backend=pool,
        config=config.grading,
        sandbox=config.sandbox,
        run_id=run.run_id,
        store=FileReferences(dataset_path(run.home, config.dataset.name)),
        on_caught=partial(_report_caught, run),
    )


def _report_caught(run: RunContext, row: TaskRow, detail: str) -> None:
    """Alert that an audit caught tampering; from now on, every passing submission is audited."""
    message = f"a submission for {row.task.instance_id} tampered: {detail}; all passing ones are audited now"
    run.alert("warning", "tampering_caught", message, task_ids=[row.task.id])


def policy_sampling(config: PolicyConfig) -> SamplingParams:
    """Return the sampling parameters of a policy's settings."""
    if isinstance(config, TransformerPolicyConfig):
        return SamplingParams(
            temperature=config.temperature, top_p=config.top_p, top_k=config.top_k, min_p=config.min_p
        )
    return configured_sampling(config) if isinstance(config, EndpointPolicyConfig) else SamplingParams()


def build_scheduler(
    config: ActingRun,
    run: RunContext,
    environments: RunEnvironments,
    policy: Policy,
    *,
    evaluation: HeldoutConfig | None = None,
    lanes: PhaseLanes | None = None,
) -> RolloutScheduler:
    """Return a scheduler whose rollouts are recorded as this run's events.

    Args:
        config: the run's configuration.
        run: this attempt.
        environments: environments and workers.
        policy: produces the responses.
        evaluation: settings of held-out evaluations; None for the run's other rollouts.
        lanes: receives the phases of the rollouts.
    """
    agent, factory = config.agent, environments.factory
    sampling = policy_sampling(config.policy)
    if evaluation is not None:
        agent = evaluation.agent(agent)
        factory = factory.for_agent(agent)
        if evaluation.temperature is not None:
            sampling = replace(sampling, temperature=evaluation.temperature)
    repeats = config.collection.retry_temperatures if isinstance(config, RolloutRun | EvaluateRun) else ()
    observer = EventObserver(
        run.sink,
        observe_duration=factory.observe_duration,
        lanes=lanes,
        counts=run.rollouts,
        with_responses=config.rollout.resume_in_flight == "replay" and not evaluation,
    )
    run.closing.callback(observer.close)
    return RolloutScheduler(
        environments=factory,
        policy=policy,
        agent=agent,
        rollout=config.rollout,
        seed=config.seed,
        observer=observer,
        sampling=sampling,
        retry_temperatures=repeats,
        workers=environments.workers,
    )


def peak_memory_mb() -> float:
    """Return the peak resident size of this process, MiB; sandboxes have limits of their own.

    Children are left out: Linux counts a forked child at its parent's size, which would count it twice.
    """
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def check_losses(groups: Sequence[Group], where: str) -> None:
    """Raise RolloutsLostError where infrastructure lost every trajectory of these groups."""
    losses = Losses()
    for group in groups:
        for trajectory in group.trajectories:
            losses.add(trajectory)
    losses.check(where)


class Losses:
    """Reasons why infrastructure lost rollouts, and whether it lost all."""

    def __init__(self) -> None:
        self.count = 0
        self._reasons: Counter[str] = Counter()

    def add(self, trajectory: Trajectory) -> None:
        """Count a trajectory."""
        self.count += 1
        if is_infrastructure(trajectory):
            self._reasons[why_lost(trajectory)] += 1

    def check(self, where: str) -> None:
        """Raise RolloutsLostError with the most frequent reason where every trajectory was lost."""
        if self.count and self._reasons.total() == self.count:
            ((reason, _),) = self._reasons.most_common(1)
            raise RolloutsLostError(
                f"infrastructure lost all {self.count} rollouts of {where}: {reason}; "
                "resume the run to continue from its last checkpoint"
            )


def why_lost(trajectory: Trajectory) -> str:
    """Return the error by which infrastructure lost a trajectory or its grading."""
    return trajectory.error or (trajectory.grade.detail if trajectory.grade is not None else "")
