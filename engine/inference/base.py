"""Interfaces of policies: token policies, which can be trained, and chat policies, which cannot.

A token policy continues token ids and returns ids with their log-probabilities and versions; a chat policy
answers messages with a message. To add one: a subclass here, a case in
``engine.orchestrator.policies.policies``, its settings in ``engine.config.policies``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from engine.models.chat.base import Chat, Message, ToolDeclaration
from engine.tools.parser import NativeCall
from engine.types import RolloutKey, Step, TaskRow

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from engine.models.weights.source import TensorInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling parameters; the recorded log-probabilities are of the resulting distribution."""

    temperature: float = 1.0
    """Sampling temperature; 0 is greedy, with log-probabilities at temperature 1."""
    top_p: float = 1.0
    """Nucleus threshold: the fewest most likely tokens with this total probability are kept; 1 keeps all."""
    top_k: int = 0
    """Number of most likely tokens kept; 0 keeps all."""
    min_p: float = 0.0
    """Minimum probability of a token, relative to the most likely token; 0 keeps all."""
    max_tokens: int = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationContext:
    """Rollout of a request: its key routes the request; scripted policies read all fields."""

    key: RolloutKey
    row: TaskRow
    steps: tuple[Step, ...] = ()
    """Finished steps; empty where the rollout runs in another process."""
    continues: bool = False
    """True where finished steps are missing from ``steps``."""

    @property
    def has_begun(self) -> bool:
        """Return whether the rollout has an earlier response."""
        return self.continues or bool(self.steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """Request to continue ``prompt_ids`` (length T) until a stop token."""

    prompt_ids: Sequence[int]
    sampling: SamplingParams
    seed: int
    """Seed of this request's own random stream: results do not depend on the rest of the batch."""
    stop_ids: frozenset[int]
    context: GenerationContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """Sampled tokens, the stop token included; the three sequences have the same length."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    stopped: bool = True
    """False when generation ended at ``max_tokens``."""
    entropy: tuple[float, ...] = field(default_factory=tuple)
    """Entropy of each token's distribution, nats; empty where the policy does not compute it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """Request for the next message of a conversation."""

    messages: Sequence[Message]
    tools: Sequence[ToolDeclaration]
    """Functions declared for native calls; empty with tool formats written as text."""
    sampling: SamplingParams
    seed: int
    context: GenerationContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens and cost of one response, as its endpoint reports them."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Tokens of the prompt that came from the endpoint's cache."""
    generated_tokens: int = 0
    """Tokens of the response, thinking included."""
    thinking_tokens: int | None = None
    """None where the endpoint does not report them."""
    cost: float | None = None
    """US dollars; None where no price is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatResponse:
    """A message of a chat policy."""

    content: str
    thinking: str = ""
    calls: tuple[NativeCall, ...] = ()
    stopped: bool = True
    """False when the response was cut off at ``max_tokens``."""
    usage: Usage = Usage()
    provider_state: Mapping[str, Any] | None = None
    """Opaque state of the provider, returned with the message unchanged: a partial message of signatures,
    encrypted reasoning and identifiers (``engine.inference.endpoint.provider_state``); None without any."""


class Policy(ABC):
    """Source of responses; may serve many rollouts at once, in one event loop."""

    is_portable: ClassVar[bool] = False
    """True where pickled copies in other processes respond identically and hold no state of the run."""
    name: str
    version: int
    max_context: int | None
    """Maximum length of a prompt and its response, tokens; None without a limit."""

    async def check(self, tools: Sequence[ToolDeclaration]) -> None:  # noqa: B027 - most policies need no check
        """Check that the policy responds; called before each rollout's sandbox starts, effective once.

        Args:
            tools: functions that requests will declare.

        Raises:
            RunEndingError: the policy cannot respond to any rollout.
        """

    def release(self, key: RolloutKey) -> None:  # noqa: B027 - most policies keep no state
        """Forget a rollout that no longer samples; a new attempt may use the same key."""

    def waited_seconds(self, key: RolloutKey) -> float:  # noqa: ARG002 - most policies answer at once
        """Return the time that a rollout has waited for the policy's engines, seconds; sampling is excluded.

        The rollout's time limit excludes it.
        """
        return 0.0

    def spent_on(self, key: RolloutKey) -> float | None:  # noqa: ARG002 - most policies are free
        """Return the US dollars spent on a rollout, lost requests included; None where no price is known."""
        return None

    async def take_metrics(self) -> dict[str, float]:
        """Return metrics of sampling since the last call, by ``area/name``."""
        return {}

    @abstractmethod
    async def close(self) -> None:
        """Release the policy's resources."""


class TokenPolicy(Policy):
    """Policy that continues token ids."""

    chat: Chat

    @abstractmethod
    async def generate(self, request: GenerationRequest) -> Generation:
        """Sample a completion. Raises ModelError."""


class ChatPolicy(Policy):
    """Policy that answers messages; its trajectories have no token ids and are never trained on by RL."""

    sends_thinking = True
    """False where the ``reasoning_content`` of earlier messages does not reach the model."""

    @abstractmethod
    async def respond(self, request: ChatRequest) -> ChatResponse:
        """Return the next message. Raises ModelError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightStream:
    """Stream of a policy's weights to engines, with the names and layout of published models."""

    infos: Mapping[str, TensorInfo]
    """Shapes and types of all tensors, in stream order."""
    tensors: Iterator[tuple[str, Tensor]]
    """Whole tensors on the trainer's device, materialised one at a time."""
    adapter: Mapping[str, Any] | None = None
    """Content of peft's ``adapter_config.json``; None unless the tensors are LoRA adapters."""


class WeightConsumer(Protocol):
    """Receiver of a policy's weights; picklable, since a distributed trainer runs it in its first rank."""

    @property
    def dtype(self) -> torch.dtype:
        """Return the type in which the engines serve the weights."""

    def __call__(self, weights: WeightStream) -> Any:
        """Consume the tensors, one after the other; the result must be picklable."""


class WeightSource(Protocol):
    """Current weights of a policy in training."""

    async def send_weights(self, consumer: WeightConsumer) -> Any:
        """Pass every weight to ``consumer`` in the trainer's thread or first rank; return its result.

        At most one tensor exists in full at a time. With LoRA only the adapters are sent, under peft's names.

        Raises:
            PublicationError: the consumer failed.
            TrainerError: a rank failed, or the last update was not completed.
        """

    async def logprobs(self, ids: Sequence[int]) -> list[float]:
        """Return the log-probability of each token after the first, under the current weights.

        Args:
            ids: token ids [T]; temperature 1.
        """


class TrainablePolicy(TokenPolicy):
    """Token policy that samples from a trainer's weights."""

    @abstractmethod
    async def publish(self, version: int, weights: WeightSource) -> dict[str, float]:
        """Sample from the trainer's current weights from now on; stamp tokens with ``version``.

        Returns:
            Metrics of the publication, e.g. ``publish/seconds``.

        Raises:
            PublicationError: no engine proves that it serves these weights.
        """
