"""What an agent acts in: it is reset, takes calls, yields a patch, is closed, and is judged.

To add an environment: a class with these methods and its own tools, an ``EnvironmentFactory`` that
makes one per attempt, its settings in ``engine.config.environment``, an entry in
``engine.orchestrator.stage``. ``swe`` is the one for software-engineering tasks, ``frozenlake`` the
small one that experiments run on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.sandbox.base import Startup
from engine.tools.schemas import Tools
from engine.types import Grade, RolloutKey, TaskRow, ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentStep:
    """What an action led to."""

    observation: str
    error: str = ""
    """Why the action was refused or failed; empty when it was carried out."""
    exit_code: int | None = None
    truncated_chars: int = 0
    done: bool = False


class Environment(Protocol):
    """One rollout's world. Every method raises ``SandboxError`` when infrastructure fails."""

    tools: Tools
    step_deadline_s: float
    """Time after which a step that has not returned means that the environment itself hangs."""

    @property
    def queue_seconds(self) -> float:
        """How long ``reset`` waited for its turn."""

    @property
    def startup(self) -> Startup | None:
        """What starting its sandbox took; None without one, and before ``reset``."""

    async def reset(self) -> str:
        """Make a fresh world; returns the id of its sandbox, empty when it has none."""

    async def step(self, call: ToolCall, *, timeout_s: float) -> EnvironmentStep:
        """Carry out a validated call; a command that outlives ``timeout_s`` is stopped and observed."""

    async def patch(self) -> str:
        """The work so far as a git-format patch; empty when nothing changed.

        Raises:
            PatchError: the agent left something that cannot be one.
        """

    async def close(self) -> None:
        """Free everything; safe to call twice and before ``reset``."""

    async def grade(self, patch: str) -> Grade:
        """Judge the finished rollout, whose work is ``patch``; called at most once, after ``close``."""


class EnvironmentFactory(Protocol):
    """Makes the environments of a run."""

    @property
    def tools(self) -> Tools:
        """What the agent may call in them; prompts list these."""

    @property
    def retries(self) -> int:
        """Fresh environments tried after an infrastructure failure before a rollout is excluded."""

    @property
    def clocks(self) -> Callable[[str, float], None] | None:
        """Where durations in sandboxes are counted, by the name of the clock; None without sandboxes."""

    async def prepare(self, rows: Sequence[TaskRow], *, group_size: int) -> None:
        """Make ready for groups of these tasks, best effort; nothing fails because of it."""

    def make(self, key: RolloutKey, row: TaskRow, *, seed: int) -> Environment:
        """A world for one attempt at a rollout.

        Args:
            key: of the rollout.
            row: its task.
            seed: of everything random in it; the same for every attempt.
        """
