"""Factories of environments: SWE tasks in a fresh sandbox per attempt, and FrozenLake."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Protocol, Self

from engine.agent.prompts import observation_style
from engine.config.rollout import AgentConfig
from engine.config.sandbox import SandboxConfig
from engine.environments.frozenlake import FrozenLakeEnvironment
from engine.environments.swe import SweEnvironment
from engine.grading.own_box import OwnBoxGrading
from engine.sandbox.base import SandboxLimits, SandboxSpec
from engine.sandbox.pool.pool import SandboxPool
from engine.tools.schemas import LAKE_TOOLS, Tools
from engine.tools.tool_sets import TOOL_SETS
from engine.types import Grade, RolloutKey, TaskRow

_LIFETIME_SLACK_S = 120.0
"""Time by which a sandbox may outlive its rollout's limit, seconds: last command, patch, closing."""

_PREPARATION_S = 60.0
"""Time for test files and reports of a grading in the rollout's own sandbox, seconds."""


class RolloutGrader(Protocol):
    """Interface of ``engine.grading.grader.Grader`` that rollouts need."""

    async def grade(self, row: TaskRow, patch: str, *, evaluation: bool = False) -> Grade:
        """Grade a patch with the task's hidden tests, within the time limit of training or evaluations."""

    def own_box(self, row: TaskRow, *, evaluation: bool = False) -> OwnBoxGrading | None:
        """Return the grading of a rollout in its agent's sandbox; None where patches are graded."""


def wanted_images(rows: Sequence[TaskRow], *, group_size: int) -> dict[str, int]:
    """Return the number of sandboxes per image for groups of these tasks."""
    images = Counter(row.task.image for row in rows)
    return {image: count * group_size for image, count in images.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class SweEnvironments:
    """Factory of software engineering environments (``engine.environments.base.EnvironmentFactory``)."""

    pool: SandboxPool
    """Source of sandboxes; share it with the grader, so that the limits hold for the whole run."""
    grader: RolloutGrader
    agent: AgentConfig
    sandbox: SandboxConfig
    run_id: str
    """Run that owns the sandboxes."""

    @property
    def tools(self) -> Tools:
        """Return the tools of the configured tool set."""
        return TOOL_SETS[self.agent.tools].tools

    @property
    def retries(self) -> int:
        """Return the number of fresh sandboxes tried after an infrastructure failure."""
        return self.sandbox.start_retries

    @property
    def observe_duration(self) -> Callable[[str, float], None]:
        """Return the pool's recorder of durations."""
        return self.pool.observe

    def for_agent(self, agent: AgentConfig) -> Self:
        """Return a factory over the same pool and grader."""
        return replace(self, agent=agent)

    async def prepare(self, rows: Sequence[TaskRow], *, group_size: int) -> None:
        """Pull images and start sandboxes in the pool for groups of these tasks."""
        await self.pool.prepare(wanted_images(rows, group_size=group_size))

    def make(self, key: RolloutKey, row: TaskRow, *, seed: int) -> SweEnvironment:  # noqa: ARG002
        """Return an environment whose sandbox is not open yet; it has no randomness."""
        evaluation = key.phase.startswith("eval:")
        own_box = self.grader.own_box(row, evaluation=evaluation)
        tests_s = own_box.timeout_s + _PREPARATION_S if own_box is not None else 0.0
        return SweEnvironment(
            self.pool.open(self._spec(key, row, tests_s=tests_s)),
            agent=self.agent,
            style=observation_style(self.agent.prompt),
            judge=partial(self.grader.grade, row, evaluation=evaluation),
            own_box=own_box,
            setup_patch=row.answer.setup_patch,
            hidden_paths=row.answer.hidden_paths,
        )

    def _spec(self, key: RolloutKey, row: TaskRow, *, tests_s: float) -> SandboxSpec:
        return SandboxSpec(
            image=row.task.image,
            workdir=row.task.workdir,
            env=row.task.env,
            run_id=self.run_id,
            name=f"{key.phase}/{key.iteration}/{key.task_id}/{key.index}",
            lane=key.phase,
            limits=SandboxLimits(
                memory_mb=self.sandbox.memory_mb,
                processes=self.sandbox.processes,
                disk_mb=self.sandbox.disk_mb,
                lifetime_s=self.agent.rollout_timeout_s + _LIFETIME_SLACK_S + tests_s,
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenLakeEnvironments:
    """Factory of FrozenLake environments (``engine.environments.base.EnvironmentFactory``); never fails."""

    agent: AgentConfig
    tools: ClassVar[Tools] = LAKE_TOOLS
    retries: ClassVar[int] = 0
    observe_duration: ClassVar[None] = None

    def for_agent(self, agent: AgentConfig) -> Self:
        """Return a factory of the same lakes."""
        return replace(self, agent=agent)

    async def prepare(self, rows: Sequence[TaskRow], *, group_size: int) -> None:
        """Do nothing."""

    def make(self, key: RolloutKey, row: TaskRow, *, seed: int) -> FrozenLakeEnvironment:  # noqa: ARG002
        """Return a lake with the player at the start."""
        return FrozenLakeEnvironment(row, style=observation_style(self.agent.prompt), seed=seed)
