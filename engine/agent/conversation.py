"""Interface of a rollout's conversation with its policy, the same for all kinds of policies.

To add a kind of policy: a class with ``Conversation``'s methods, opened in ``open_conversation``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from engine.inference.base import ChatResponse, Generation, GenerationContext, SamplingParams
from engine.models.chat.base import Message, Reply
from engine.tokens import TokenRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One response of the policy, parsed."""

    reply: Reply
    stopped: bool
    """False when the response was cut off by a limit on its length."""
    prompt_tokens: int
    """Length of the prompt; 0 where it is not reported."""
    generated_tokens: int
    """Length of the response, thinking included; 0 where it is not reported."""
    thinking_tokens: int | None
    """None where it is not reported."""
    version: int
    """Newest policy version that sampled a part of the response."""
    cached_tokens: int = 0
    cost: float | None = None
    """US dollars; None where no price is known."""
    provider_state: Mapping[str, Any] | None = None
    """Opaque state of the provider, returned with its message; None without any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """The next prompt: an extension after the last response, or a whole new prompt."""

    messages: tuple[Message, ...]
    length: int
    """Length of the resulting prompt, tokens; an estimate where there are no ids."""
    ids: Sequence[int] = ()
    """New ids; empty in conversations of messages."""
    forked: bool = False
    """True for a whole new prompt, which starts another sample."""


class Conversation(Protocol):
    """A rollout's conversation with its policy."""

    def __len__(self) -> int:
        """Return the length of the current prompt, tokens; an estimate where there are no ids."""

    async def respond(
        self, *, step: int, sampling: SamplingParams, seed: int, context: GenerationContext
    ) -> Turn:
        """Ask the policy for its next response and append it.

        Raises:
            ModelError: the policy could not produce one.
        """

    def repeat(self, response: Generation | ChatResponse, *, step: int) -> Turn:
        """Append a response of the policy from an earlier attempt at the rollout.

        Raises:
            TypeError: the response is from the other kind of policy.
        """

    @property
    def last_response(self) -> Generation | ChatResponse:
        """Return the policy's last response; there must be one."""

    def answer(self, observation: str) -> Continuation:
        """Return the next prompt after the last response and the observation that answers it.

        Raises:
            ModelError: the model's family cannot express the conversation.
        """

    def append(self, continuation: Continuation, *, step: int) -> None:
        """Append the next prompt, which answers the response of ``step``."""

    def cap(self, text: str, limit: int) -> tuple[str, int]:
        """Keep at most ``limit`` tokens, head and tail; return the text and the number of characters cut."""

    def record(self) -> TokenRecord:
        """Return the token columns so far; empty in conversations of messages."""


def call_id(step: int, position: int) -> str:
    """Return the identifier of a step's function call: nine characters, as Mistral requires."""
    return f"c{step % 100_000:05d}x{position % 100:02d}"
