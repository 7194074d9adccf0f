"""Messages between a run's process and its rollout workers.

A worker is told ``Settings`` and ``NewParts`` before the rollouts that need them. It reports on rollouts
(``Report``) and asks for what only the run's process has (``Ask``): answers of the policy, places in the
sandbox pool, gradings. To add a question: a class here, its answer in ``connection.WorkerConnection``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from engine.agent.replay import FinishedTurn
from engine.config.rollout import AgentConfig
from engine.environments.base import EnvironmentFactory
from engine.errors import TrainyardError, describe_error
from engine.inference.base import Policy, SamplingParams
from engine.models.chat.base import Chat, Message, ToolDeclaration
from engine.sandbox.base import SandboxSpec, Startup
from engine.types import Grade, RolloutKey, RolloutPhase, TaskRow, Trajectory


class RunServices(Protocol):
    """Interface of a worker to the process of its run."""

    def tell(self, message: object) -> None:
        """Send a message."""

    async def ask(self, question: object) -> Any:
        """Return the answer to a question. Raises what the run's process raised, as ``portable``."""

    async def grade(self, row: TaskRow, patch: str, *, evaluation: bool = False) -> Grade:
        """Grade a patch in the run's process."""


class EnvironmentSettings(Protocol):
    """Picklable settings from which a worker opens the environments of its rollouts."""

    async def open(self, run: RunServices, *, num_workers: int) -> tuple[EnvironmentFactory, Any]:
        """Return the factory, and the sandbox pool to prepare and close; None without sandboxes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """First message to a worker."""

    environments: EnvironmentSettings
    num_workers: int
    secrets: frozenset[str]
    """Texts to keep out of its log."""
    memory_mb: int
    """Memory at which it ends itself, MiB; 0 sets no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySettings:
    """Policy as a worker sees it."""

    name: str
    version: int
    max_context: int | None
    chat: Chat | None = None
    """Conversations of a token policy; None of a chat policy."""
    sends_thinking: bool = True
    copy: Policy | None = None
    """The policy itself, where a copy answers alike; the worker then asks for nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewParts:
    """Parts that rollouts of one scheduler share (``engine.rollout.rollout.RolloutParts``)."""

    number: int
    policy: PolicySettings
    agent: AgentConfig
    sampling: SamplingParams
    seed: int
    retry_temperatures: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Begin:
    """A rollout to run; its number is unique in the run's process."""

    rollout: int
    parts: int
    key: RolloutKey
    row: TaskRow
    recorded: tuple[FinishedTurn, ...]
    """Turns of an earlier attempt to repeat first."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """End of a rollout before its time."""

    rollout: int
    reason: str


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Interruption of a rollout's attempt; the next one waits for ``Continue``."""

    rollout: int


@dataclass(frozen=True, slots=True)
class Continue:
    """End of an interruption."""

    rollout: int


@dataclass(frozen=True, slots=True)
class Waited:
    """Time that a rollout has waited for the policy's engines so far, seconds."""

    rollout: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Prepare:
    """Images whose sandboxes are wanted next, with their number."""

    images: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer to a question, or the error instead."""

    number: int
    value: Any = None
    error: Exception | None = None


# --- from a worker -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Alive:
    """Sign of life."""


@dataclass(frozen=True, slots=True)
class Report:
    """News of a rollout."""

    rollout: int
    news: News


@dataclass(frozen=True, slots=True)
class Started:
    """Start of an attempt, as observers are told."""

    sandbox_id: str


@dataclass(frozen=True, slots=True)
class Entered:
    """Start of a phase."""

    phase: RolloutPhase


@dataclass(frozen=True, slots=True)
class Stepped:
    """A finished step."""

    turn: FinishedTurn


@dataclass(frozen=True, slots=True)
class Acted:
    """End of acting; the grading follows."""


@dataclass(frozen=True, slots=True)
class Released:
    """End of an attempt's requests to the policy."""


@dataclass(frozen=True, slots=True)
class Finished:
    """Terminal record."""

    trajectory: Trajectory


@dataclass(frozen=True, slots=True)
class Ended:
    """Last news of a rollout."""

    error: BaseException | None = None
    """Error that ended it; None where it has a result."""


News = Started | Entered | Stepped | Acted | Released | Finished | Ended


@dataclass(frozen=True, slots=True)
class Ask:
    """A question, and the number of its answer."""

    number: int
    question: Any


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Withdrawal of a question."""

    number: int


@dataclass(frozen=True, slots=True)
class CheckPolicy:
    """Question whether a policy answers (``Policy.check``)."""

    parts: int
    tools: Sequence[ToolDeclaration]


@dataclass(frozen=True, slots=True)
class Generate:
    """Question for the continuation of token ids (``GenerationRequest``)."""

    rollout: int
    prompt_ids: Sequence[int]
    sampling: SamplingParams
    seed: int
    stop_ids: frozenset[int]
    has_begun: bool


@dataclass(frozen=True, slots=True)
class Respond:
    """Question for the next message of a conversation (``ChatRequest``)."""

    rollout: int
    messages: Sequence[Message]
    tools: Sequence[ToolDeclaration]
    sampling: SamplingParams
    seed: int


@dataclass(frozen=True, slots=True)
class GradePatch:
    """Question for the grade of a patch."""

    task_id: str
    patch: str
    evaluation: bool


@dataclass(frozen=True, slots=True)
class TakePlace:
    """Question for a place in the sandbox pool; answered once there is one."""

    lease: str
    spec: SandboxSpec


@dataclass(frozen=True, slots=True)
class SandboxStarted:
    """Start of a lease's sandbox."""

    lease: str
    sandbox_id: str
    startup: Startup


@dataclass(frozen=True, slots=True)
class SandboxEnded:
    """End of a lease, whether its sandbox had started or not."""

    lease: str
    error: BaseException | None


def portable(error: BaseException) -> Exception:
    """Return an error that other processes can read: of the nearest class that a message is enough for."""
    for kind in type(error).__mro__:
        if issubclass(kind, Exception) and kind.__init__ is Exception.__init__:
            return (
                kind(str(error)) if issubclass(kind, TrainyardError) else RuntimeError(describe_error(error))
            )
    return RuntimeError(describe_error(error))
