"""Builds what rollouts need from a configuration: tasks, sandbox backend, grader, scheduler.

To add a sandbox backend: an entry in ``_BACKENDS``.
"""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from engine.config.rollout import DatasetConfig, SandboxConfig, TransformerPolicyConfig
from engine.config.run import EvaluateRun, RolloutRun, TrainRun
from engine.datasets.store import load_dataset
from engine.errors import PreflightError
from engine.events.types import RunStarted
from engine.grading.grader import Grader
from engine.inference.base import Policy, SamplingParams
from engine.orchestrator.context import RunContext
from engine.orchestrator.projection import EventObserver
from engine.rollout.budget import BudgetedBackend
from engine.rollout.scheduler import RolloutScheduler
from engine.sandbox.base import SandboxBackend
from engine.sandbox.local import LocalBackend
from engine.types import TaskRow

_BACKENDS: Mapping[str, Callable[[Path], SandboxBackend]] = {"local": LocalBackend}


def announce(run: RunContext, *, resumed_from: int | None = None, total_iterations: int = 0) -> None:
    """The attempt's first event."""
    run.sink.emit(
        RunStarted,
        host=socket.gethostname(),
        pid=os.getpid(),
        resumed_from=resumed_from,
        total_iterations=total_iterations,
    )


def load_rows(config: DatasetConfig, home: Path) -> Sequence[TaskRow]:
    """The tasks of the configured split. Raises DatasetError when there are none."""
    return load_dataset(home, config.name).split(config.split)[: config.limit]


async def open_backend(config: SandboxConfig, run: RunContext) -> BudgetedBackend:
    """A backend that works on this machine, with what an earlier attempt left behind removed.

    Raises:
        PreflightError: what the machine lacks, all of it.
    """
    backend = _BACKENDS[config.backend](run.home)
    problems = await backend.preflight()
    if problems:
        raise PreflightError("; ".join(problems))
    await backend.reap(run_id=run.run_id)
    return BudgetedBackend(backend, max_live=config.max_live, max_starting=config.max_starting)


def build_scheduler(
    config: TrainRun | RolloutRun | EvaluateRun, run: RunContext, backend: BudgetedBackend, policy: Policy
) -> RolloutScheduler:
    """A scheduler whose rollouts become this run's events; rollouts and grading share one budget."""
    sampling = SamplingParams()
    if isinstance(config.policy, TransformerPolicyConfig):
        sampling = SamplingParams(temperature=config.policy.temperature, top_p=config.policy.top_p)
    return RolloutScheduler(
        backend=backend,
        policy=policy,
        agent=config.agent,
        sandbox=config.sandbox,
        rollout=config.rollout,
        grader=Grader(backend=backend, config=config.grading, sandbox=config.sandbox, run_id=run.run_id),
        run_id=run.run_id,
        seed=config.seed,
        observer=EventObserver(run.sink),
        sampling=sampling,
    )


def peak_memory_mb() -> float:
    """Largest resident size of this process so far, MiB; sandboxes have limits of their own.

    Children are left out: Linux counts a forked child at its parent's size, which would count it twice.
    """
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
