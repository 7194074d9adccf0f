"""A conversation as token ids: the sampled ids are the ids trained on.

Sampled ids are appended unchanged; only new text (an observation and the turn headers around it) is encoded,
so nothing is re-tokenised and every prompt is an exact prefix of the next. Five parallel columns
(ids, mask, log-probabilities, policy versions, step indices) become the trajectory's ``TokenRecord``.

Where the model's family cannot continue after a response, or earlier thinking is dropped, the conversation is
rendered anew: a fork. The trajectory then has several samples, concatenated in the record. Each sampled token
is marked as sampled in exactly one of them; each sample begins with a prompt (step -1).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TypeVar

from engine.agent.budget import cap_tokens
from engine.agent.conversation import Continuation, Turn, call_id
from engine.errors import ModelError
from engine.inference.base import (
    ChatResponse,
    Generation,
    GenerationContext,
    GenerationRequest,
    SamplingParams,
    TokenPolicy,
)
from engine.models.chat.base import Chat, Message, Reply, ToolDeclaration
from engine.tokens import TokenRecord
from engine.tools import printable

N = TypeVar("N", int, float)


class TokenConversation:
    """The token columns of one rollout, all of the same length.

    Args:
        chat: the model's chat format; hostile text never becomes a turn marker.
        messages: system and first user message.
        tools: functions declared to the model, for native calls.
        keep_thinking: False removes the thinking of earlier turns from every prompt, which forks.
    """

    def __init__(
        self,
        chat: Chat,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolDeclaration] = (),
        keep_thinking: bool = True,
    ) -> None:
        self._chat = chat
        self._messages = list(messages)
        self._tools = tools
        self._keep_thinking = keep_thinking
        self._ids = array("i")
        self._mask = array("B")
        self._logprobs = array("f")
        self._versions = array("i")
        self._steps = array("i")
        self._sample = 0
        """Position where the current sample begins."""
        self._turn = 0
        """Position where the last prompt's new part begins."""
        self._response = 0
        """Position where the last response begins."""
        self._thought = False
        self.forks = 0
        """Number of times the conversation was rendered anew."""
        self._append_text(chat.open(self._messages, tools), step=-1)

    def __len__(self) -> int:
        """Return the length of the current prompt, tokens."""
        return len(self._ids) - self._sample

    @property
    def prompt_ids(self) -> Sequence[int]:
        """Return the ids to continue from, as a copy."""
        return self._ids[self._sample :]

    def append_generation(self, generation: Generation, *, step: int) -> Reply:
        """Append the sampled ids of a step, the stop id included, and return them parsed.

        Raises:
            ValueError: the generation's columns differ in length.
        """
        if not len(generation.ids) == len(generation.logprobs) == len(generation.versions):
            raise ValueError("a generation's ids, logprobs and versions differ in length")
        reply = self._chat.parse(generation.ids, self._ids[self._turn :], self._tools)
        self._response = len(self._ids)
        self._ids.extend(generation.ids)
        self._mask += _repeated("B", 1, len(generation.ids))
        self._logprobs.extend(generation.logprobs)
        self._versions.extend(generation.versions)
        self._steps += _repeated("i", step, len(generation.ids))
        self._messages.append(_assistant_message(reply, step, keep_thinking=self._keep_thinking))
        self._thought = reply.thinking_tokens > 0
        return reply

    def continuation(self, messages: Sequence[Message]) -> Continuation:
        """Return the next prompt after the last response and the messages that answer it.

        Raises:
            ModelError: the family cannot express the conversation.
        """
        ids = None
        if self._keep_thinking or not self._thought:
            prompt, completion = self._ids[self._turn : self._response], self._ids[self._response :]
            ids = self._chat.extend(prompt, completion, messages, self._tools)
        if ids is not None:
            return Continuation(ids=ids, messages=tuple(messages), length=len(self) + len(ids))
        ids = self._chat.open([*self._messages, *messages], self._tools)
        return Continuation(ids=ids, messages=tuple(messages), forked=True, length=len(ids))

    def append(self, continuation: Continuation, *, step: int) -> None:
        """Append the next prompt; its tokens belong to the step whose action they answer."""
        if continuation.forked:
            self.forks += 1
            self._sample = len(self._ids)
        self._messages += continuation.messages
        self._append_text(continuation.ids, step=-1 if continuation.forked else step)

    def record(self) -> TokenRecord:
        """Return the current columns."""
        return TokenRecord(
            ids=self._ids,
            mask=self._mask,
            logprobs=self._logprobs,
            versions=self._versions,
            steps=self._steps,
        )

    def _append_text(self, ids: Sequence[int], *, step: int) -> None:
        self._turn = len(self._ids)
        self._ids.extend(ids)
        self._mask += _repeated("B", 0, len(ids))
        self._logprobs += _repeated("f", 0.0, len(ids))
        self._versions += _repeated("i", -1, len(ids))
        self._steps += _repeated("i", step, len(ids))


def _repeated(typecode: str, value: N, count: int) -> array[N]:
    return array(typecode, (value,)) * count


class SampledConversation(TokenConversation):
    """A rollout's conversation with a token policy (``engine.agent.conversation.Conversation``).

    Args:
        policy: samples the responses.
        chat: as in ``TokenConversation``; ``messages``, ``tools`` and ``keep_thinking`` too.
    """

    def __init__(
        self,
        policy: TokenPolicy,
        chat: Chat,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolDeclaration] = (),
        keep_thinking: bool = True,
    ) -> None:
        super().__init__(chat, messages, tools=tools, keep_thinking=keep_thinking)
        self._policy = policy
        self._last = (0, Reply(text="", thinking="", content=""))
        """The last response and its step."""
        self._generation: Generation

    async def respond(
        self, *, step: int, sampling: SamplingParams, seed: int, context: GenerationContext
    ) -> Turn:
        """Sample the next response and append its ids. Raises ModelError."""
        request = GenerationRequest(
            prompt_ids=self.prompt_ids,
            sampling=sampling,
            seed=seed,
            stop_ids=self._chat.stop_ids,
            context=context,
        )
        generation = await self._policy.generate(request)
        if not generation.ids:
            raise ModelError("the policy returned no tokens")
        return self._appended(generation, step)

    def repeat(self, response: Generation | ChatResponse, *, step: int) -> Turn:
        """Append the sampled ids of an earlier attempt. Raises TypeError."""
        if not isinstance(response, Generation):
            raise TypeError("a message cannot be repeated in a conversation of tokens")
        return self._appended(response, step)

    @property
    def last_response(self) -> Generation:
        """Return the last sampled tokens."""
        return self._generation

    def _appended(self, generation: Generation, step: int) -> Turn:
        prompt_tokens = len(self)
        reply = self.append_generation(generation, step=step)
        self._generation, self._last = generation, (step, reply)
        return Turn(
            reply=reply,
            stopped=generation.stopped,
            prompt_tokens=prompt_tokens,
            generated_tokens=len(generation.ids),
            thinking_tokens=reply.thinking_tokens,
            version=max(generation.versions),
        )

    def answer(self, observation: str) -> Continuation:
        """Return the next prompt with an observation. Raises ModelError."""
        step, reply = self._last
        return self.continuation(answers(observation, reply, step))

    def cap(self, text: str, limit: int) -> tuple[str, int]:
        """Keep at most ``limit`` tokens, head and tail; return the text and the number of characters cut."""
        return cap_tokens(text, limit, self._chat.tokenizer)


def answers(observation: str, reply: Reply, step: int) -> list[Message]:
    """Return the messages that answer a response: one for each native call.

    Without calls, or with a malformed one, it is one user message.
    """
    if not reply.calls or any(call.error for call in reply.calls):
        return [{"role": "user", "content": observation}]
    return [
        {
            "role": "tool",
            "tool_call_id": call_id(step, position),
            "name": printable(call.name),
            "content": observation,
        }
        for position, call in enumerate(reply.calls)
    ]


def _assistant_message(reply: Reply, step: int, *, keep_thinking: bool) -> Message:
    """Return a response as a message, for prompts that are rendered anew."""
    message: dict[str, object] = {"role": "assistant", "content": reply.content}
    if keep_thinking and reply.thinking:
        message["reasoning_content"] = reply.thinking
    if reply.calls and not any(call.error for call in reply.calls):
        message["tool_calls"] = [
            {
                "id": call_id(step, position),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for position, call in enumerate(reply.calls)
        ]
    return message
