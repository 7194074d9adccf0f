"""Adapter from chat policies to token policies, for imitation learning and tests."""

from __future__ import annotations

from engine.inference.base import ChatPolicy, ChatRequest, Generation, GenerationRequest, TokenPolicy
from engine.models.chat.base import Chat
from engine.tools.rendering import render_turn
from engine.types import RolloutKey


class TokenizedPolicy(TokenPolicy):
    """Token policy that encodes a chat policy's responses as if a model had sampled them.

    Log-probabilities are 0: the policy is certain.

    Args:
        policy: source of the responses; it receives only the context, no messages.
        chat: encodes them.
    """

    max_context: int | None = None

    def __init__(self, policy: ChatPolicy, chat: Chat) -> None:
        self.chat = chat
        self.name = policy.name
        self.version = policy.version
        self._policy = policy

    async def generate(self, request: GenerationRequest) -> Generation:
        """Return the response's ids, cut at the request's limit. Raises ModelError."""
        response = await self._policy.respond(
            ChatRequest(
                messages=(), tools=(), sampling=request.sampling, seed=request.seed, context=request.context
            )
        )
        text = render_turn(response.thinking, response.content)
        ids = self.chat.reply_ids(text, response.calls)
        kept = tuple(ids[: request.sampling.max_tokens])
        return Generation(
            ids=kept,
            logprobs=(0.0,) * len(kept),
            versions=(self.version,) * len(kept),
            stopped=len(kept) == len(ids),
        )

    def release(self, key: RolloutKey) -> None:
        """Forget a rollout that no longer samples."""
        self._policy.release(key)

    async def close(self) -> None:
        """Close the chat policy."""
        await self._policy.close()
