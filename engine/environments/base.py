"""Environment of an agent: reset, step, patch, close, grade.

To add an environment: a class with these methods and its own tools, an ``EnvironmentFactory`` that
makes one per attempt, its settings in ``engine.config.environment``, an entry in
``engine.orchestrator.setup``. ``swe`` serves software-engineering tasks, ``frozenlake`` small
experiments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.config.rollout import AgentConfig
from engine.sandbox.base import Startup
from engine.tools.schemas import Tools
from engine.types import Grade, RolloutKey, TaskRow, ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentStep:
    """Result of one action."""

    observation: str
    error: str = ""
    """Reason why the action was refused or failed; empty after success."""
    exit_code: int | None = None
    truncated_chars: int = 0
    done: bool = False


class Environment(Protocol):
    """The environment of one rollout. Every method raises ``SandboxError`` when infrastructure fails."""

    tools: Tools
    step_deadline_s: float
    """Seconds after which an unfinished step means that the environment hangs."""

    @property
    def grades_in_place(self) -> bool:
        """Return whether ``grade`` needs the environment open."""

    @property
    def queue_seconds(self) -> float:
        """Return the seconds that ``reset`` waited for admission."""

    @property
    def startup(self) -> Startup | None:
        """Return node and duration of the sandbox start; None without a sandbox and before ``reset``."""

    async def reset(self) -> str:
        """Start the environment; return the id of its sandbox, empty without one."""

    async def step(self, call: ToolCall, *, timeout_s: float) -> EnvironmentStep:
        """Execute a validated call; a command that exceeds ``timeout_s`` is stopped, with its output kept."""

    async def patch(self) -> str:
        """Return the changes so far as a git-format patch; empty when nothing changed.

        Raises:
            PatchError: the changes cannot be expressed as a patch.
        """

    async def close(self) -> None:
        """Free all resources; safe to call twice and before ``reset``."""

    async def grade(self, patch: str) -> Grade:
        """Grade the finished rollout; called at most once.

        With ``grades_in_place``, call it before ``close``, even for an empty patch; else after ``close``.
        """


class EnvironmentFactory(Protocol):
    """Factory of a run's environments."""

    @property
    def tools(self) -> Tools:
        """Return the tools that agents may call; prompts list them."""

    @property
    def retries(self) -> int:
        """Return the number of fresh environments tried before a rollout is excluded."""

    @property
    def observe_duration(self) -> Callable[[str, float], None] | None:
        """Return the callback that adds sandbox seconds to a named histogram; None without sandboxes."""

    def for_agent(self, agent: AgentConfig) -> EnvironmentFactory:
        """Return a factory of the same environments for an agent with other limits."""

    async def prepare(self, rows: Sequence[TaskRow], *, group_size: int) -> None:
        """Prepare for groups of these tasks; best effort: failures surface in ``reset``."""

    def make(self, key: RolloutKey, row: TaskRow, *, seed: int) -> Environment:
        """Create the environment of one attempt at a rollout.

        Args:
            key: key of the rollout.
            row: task of the rollout.
            seed: seed of all randomness; the same for every attempt.
        """
