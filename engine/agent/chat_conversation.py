"""A conversation as messages, for policies without token ids.

Messages have OpenAI's format. Responses are sanitised before they are sent back: every call has an identifier
(the endpoint's, where it gave one), a name that endpoints accept and a JSON object of arguments, and is
answered by a tool message. Provider state is returned unchanged. Lengths are the endpoint's counts where it
reports them; newer messages, or all, are estimated.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from engine.agent.budget import cap_estimated, estimate_tokens
from engine.agent.conversation import Continuation, Turn, call_id
from engine.inference.base import (
    ChatPolicy,
    ChatRequest,
    ChatResponse,
    Generation,
    GenerationContext,
    SamplingParams,
    Usage,
)
from engine.inference.sent_calls import sent_calls
from engine.models.chat.base import Message, Reply, ToolDeclaration
from engine.tokens import TokenRecord
from engine.tools import printable
from engine.tools.formats import ToolFormat
from engine.tools.parser import MAX_RESPONSE_CHARS, THINK_END, THINK_START, NativeCall, thinking_end
from engine.tools.rendering import render_turn
from engine.tools.schemas import Tools

_MAX_CALLS = 32
"""Maximum number of calls kept per response; more than one is an error anyway."""
_MAX_COUNT = 2**31 - 1
"""Upper limit of token counts from an endpoint: the database's largest integer."""
_MESSAGE_TOKENS = 4
"""Estimated tokens around a message's text."""
_THINKING_STATE = ("reasoning_details", "reasoning_opaque", "encrypted_content", "thinking_blocks")
"""Provider state that contains thinking; call signatures are needed even without thinking."""
_EMPTY = "(empty response)"
"""Text of an empty response in later prompts: many endpoints refuse a message with neither text nor calls."""


class ChatConversation:
    """A rollout's conversation with a chat policy (``engine.agent.conversation.Conversation``).

    Args:
        policy: writes the responses.
        messages: system and first user message.
        declarations: functions declared to the policy, for native calls.
        tools: tools of the environment, needed to find the end of thinking in a response's text.
        tool_format: format of the calls.
        keep_thinking: False leaves the thinking of earlier turns out of every request.
    """

    def __init__(
        self,
        policy: ChatPolicy,
        messages: Sequence[Message],
        *,
        declarations: Sequence[ToolDeclaration],
        tools: Tools,
        tool_format: ToolFormat,
        keep_thinking: bool,
    ) -> None:
        self._policy = policy
        self._messages = list(messages)
        self._declarations = declarations
        self._tools = tools
        self._tool_format = tool_format
        self._keep_thinking = keep_thinking
        declared = estimate_tokens(json.dumps(declarations)) if declarations else 0
        self._length = declared + sum(map(_estimated_length, messages))
        self._response: ChatResponse

    def __len__(self) -> int:
        """Return the length of the current prompt, tokens, estimated where it is not reported."""
        return self._length

    async def respond(
        self, *, step: int, sampling: SamplingParams, seed: int, context: GenerationContext
    ) -> Turn:
        """Ask for the next message and append it. Raises ModelError."""
        request = ChatRequest(
            messages=tuple(self._messages),
            tools=self._declarations,
            sampling=sampling,
            seed=seed,
            context=context,
        )
        return self._appended(await self._policy.respond(request), step)

    def repeat(self, response: Generation | ChatResponse, *, step: int) -> Turn:
        """Append the message of an earlier attempt. Raises TypeError."""
        if not isinstance(response, ChatResponse):
            raise TypeError("sampled tokens cannot be repeated in a conversation of messages")
        return self._appended(response, step)

    @property
    def last_response(self) -> ChatResponse:
        """Return the last message, sanitised."""
        return self._response

    def _appended(self, message: ChatResponse, step: int) -> Turn:
        version = self._policy.version
        response = self._response = _cleaned(message, has_tools=bool(self._declarations))
        reply = self._parsed(response)
        self._messages.append(self._message(response, reply, step))
        self._measure(response, reply)
        return Turn(
            reply=reply,
            stopped=response.stopped,
            prompt_tokens=response.usage.prompt_tokens,
            generated_tokens=response.usage.generated_tokens,
            thinking_tokens=response.usage.thinking_tokens,
            version=version,
            cached_tokens=response.usage.cached_tokens,
            cost=response.usage.cost,
            provider_state=response.provider_state,
        )

    def answer(self, observation: str) -> Continuation:
        """Return the next prompt: a tool message for each call, or a user message where there is none."""
        messages: list[Message] = [
            {
                "role": "tool",
                "tool_call_id": call["id"],
                "name": call["function"]["name"],
                "content": observation,
            }
            for call in self._messages[-1].get("tool_calls", ())
        ] or [{"role": "user", "content": observation}]
        length = self._length + sum(map(_estimated_length, messages))
        return Continuation(messages=tuple(messages), length=length)

    def append(self, continuation: Continuation, *, step: int) -> None:  # noqa: ARG002 - for token columns
        """Append the messages of the next prompt."""
        self._messages += continuation.messages
        self._length = continuation.length

    def cap(self, text: str, limit: int) -> tuple[str, int]:
        """Keep about ``limit`` tokens, head and tail; return the text and the number of characters cut."""
        return cap_estimated(text, limit)

    def record(self) -> TokenRecord:
        """Return an empty record: token ids are unknown."""
        return TokenRecord()

    def _parsed(self, response: ChatResponse) -> Reply:
        """Split a response into thinking and content, which the endpoint or its text separates."""
        thinking, content, closed = response.thinking, response.content, True
        if not thinking and len(content) <= MAX_RESPONSE_CHARS:
            end = thinking_end(content, self._tool_format, self._tools)
            closed = end is not None or bool(response.calls)
            thinking = content[:end].replace(THINK_START, "", 1).removesuffix(THINK_END) if end != 0 else ""
            content = content[end:] if end is not None else ""
        return Reply(
            text=render_turn(response.thinking, response.content, response.calls),
            thinking=thinking,
            content=content,
            calls=response.calls,
            thinking_closed=closed,
        )

    def _message(self, response: ChatResponse, reply: Reply, step: int) -> Message:
        """Return the response as a message for later requests."""
        message: dict[str, Any] = {"role": "assistant"}
        message["content"] = response.content if self._keep_thinking else reply.content
        if self._keep_thinking and response.thinking:
            message["reasoning_content"] = response.thinking
        if response.provider_state is not None:
            message["provider_state"] = {
                name: value
                for name, value in response.provider_state.items()
                if self._keep_thinking or name not in _THINKING_STATE
            }
        if reply.calls:
            message["tool_calls"] = sent_calls(response, identify=lambda position: call_id(step, position))
        elif not message["content"].strip():
            message["content"] = _EMPTY
        return message

    def _measure(self, response: ChatResponse, reply: Reply) -> None:
        """Update the length from the endpoint's counts, where it reports them.

        Thinking counts only if later requests contain it: not if it is dropped, hidden or not sent.
        """
        usage = response.usage
        prompt = usage.prompt_tokens or self._length
        self._length = prompt + (usage.generated_tokens or estimate_tokens(reply.text))
        is_sent = self._policy.sends_thinking if response.thinking else bool(reply.thinking)
        if not (self._keep_thinking and is_sent):
            known = usage.thinking_tokens
            self._length -= estimate_tokens(reply.thinking) if known is None else known
            self._length = max(self._length, prompt)


def _cleaned(response: ChatResponse, *, has_tools: bool) -> ChatResponse:
    """Return a sanitised response, which can be stored and sent back."""
    usage = response.usage
    cost = usage.cost
    return replace(
        response,
        content=printable(response.content),
        thinking=printable(response.thinking),
        calls=tuple(map(_cleaned_call, response.calls[:_MAX_CALLS])) if has_tools else (),
        usage=Usage(
            prompt_tokens=_count(usage.prompt_tokens),
            cached_tokens=_count(usage.cached_tokens),
            generated_tokens=_count(usage.generated_tokens),
            thinking_tokens=None if usage.thinking_tokens is None else _count(usage.thinking_tokens),
            cost=cost if cost is not None and math.isfinite(cost) and cost >= 0 else None,
        ),
    )


def _cleaned_call(call: NativeCall) -> NativeCall:
    arguments = call.arguments
    if isinstance(arguments, Mapping):
        try:
            arguments = json.dumps(dict(arguments), ensure_ascii=False)
        except (TypeError, ValueError, RecursionError) as error:
            reason = call.error or f"the tool call's arguments cannot be written as JSON: {error}"
            return NativeCall(name=printable(call.name), arguments="", error=reason)
    if len(arguments) > MAX_RESPONSE_CHARS:
        reason = (
            f"the tool call's arguments are longer than {MAX_RESPONSE_CHARS} characters and were not read"
        )
        return NativeCall(name=printable(call.name), arguments="", error=reason)
    return NativeCall(name=printable(call.name), arguments=printable(arguments), error=call.error)


def _count(tokens: int) -> int:
    return min(max(tokens, 0), _MAX_COUNT)


def _estimated_length(message: Message) -> int:
    return _MESSAGE_TOKENS + estimate_tokens(str(message["content"]))
