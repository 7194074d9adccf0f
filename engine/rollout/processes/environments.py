"""Settings from which a worker opens its environments (``messages.EnvironmentSettings``)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engine.config.rollout import AgentConfig, GradingConfig
from engine.config.sandbox import SandboxConfig
from engine.environments.base import EnvironmentFactory
from engine.grading.grader import Grader
from engine.grading.own_box import OwnBoxGrading
from engine.rollout.environments import FrozenLakeEnvironments, SweEnvironments
from engine.rollout.processes.messages import RunServices
from engine.rollout.processes.services import WorkerPool
from engine.sandbox.backends import make_backend
from engine.types import Grade, TaskRow


@dataclass(frozen=True, slots=True, kw_only=True)
class SweSettings:
    """Settings of software-engineering environments."""

    agent: AgentConfig
    sandbox: SandboxConfig
    home: Path
    run_id: str
    grading: GradingConfig | None
    """Settings of gradings in the agents' own sandboxes; None where only patches are graded."""

    async def open(self, run: RunServices, *, num_workers: int) -> tuple[EnvironmentFactory, WorkerPool]:
        """Return environments over sandboxes of this process and gradings of the run's."""
        share = self.sandbox.model_copy(update={"max_live": -(-self.sandbox.max_live // num_workers)})
        pool = WorkerPool(make_backend(share, self.home, run_id=self.run_id), share, run)
        own = None
        if self.grading is not None:
            own = Grader(backend=pool, config=self.grading, sandbox=self.sandbox, run_id=self.run_id)
        environments = SweEnvironments(
            pool=pool,
            grader=WorkerGrader(run, own),
            agent=self.agent,
            sandbox=self.sandbox,
            run_id=self.run_id,
        )
        return environments, pool


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenLakeSettings:
    """Settings of FrozenLake environments."""

    agent: AgentConfig

    async def open(
        self,
        run: RunServices,  # noqa: ARG002
        *,
        num_workers: int,  # noqa: ARG002
    ) -> tuple[EnvironmentFactory, None]:
        """Return the environments."""
        return FrozenLakeEnvironments(agent=self.agent), None


class WorkerGrader:
    """Grades in the run's process, and in the agents' own sandboxes here.

    Args:
        run: the run's process.
        own: makes the gradings in the agents' sandboxes; None where only patches are graded.
    """

    def __init__(self, run: RunServices, own: Grader | None) -> None:
        self._run, self._own = run, own

    async def grade(self, row: TaskRow, patch: str, *, evaluation: bool = False) -> Grade:
        """Grade a patch in the run's process, which limits gradings and knows identical patches."""
        return await self._run.grade(row, patch, evaluation=evaluation)

    def own_box(self, row: TaskRow, *, evaluation: bool = False) -> OwnBoxGrading | None:
        """Return the grading in the agent's sandbox; None where patches are graded."""
        return None if self._own is None else self._own.own_box(row, evaluation=evaluation)
