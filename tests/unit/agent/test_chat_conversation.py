"""Conversations of messages: every response leads to a valid next request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.agent.budget import cap_estimated, estimate_tokens
from engine.agent.chat_conversation import ChatConversation
from engine.inference.base import ChatResponse, GenerationContext, SamplingParams, Usage
from engine.models.chat.base import Message
from engine.tools.parser import NativeCall
from engine.tools.schemas import SWE_TOOLS
from tests.builders.rollout_builders import ChatScript, make_key, make_row

DECLARED = [{"type": "function", "function": {"name": "submit", "parameters": {}}}]
ANYTHING = st.text(st.characters(codec=None, exclude_categories=()), max_size=20)
TEXTS = ANYTHING | st.sampled_from(["<think>", "</think>", "<think>a</think>b", " <think>\n", "a</think>"])
VALUES = st.none() | st.booleans() | st.integers() | st.floats() | ANYTHING | st.lists(ANYTHING, max_size=2)
ARGUMENTS = (
    st.dictionaries(ANYTHING, VALUES, max_size=2)
    | TEXTS
    | st.dictionaries(ANYTHING, VALUES, max_size=2).map(json.dumps)
)
CALLS = st.lists(
    st.builds(NativeCall, name=ANYTHING, arguments=ARGUMENTS, error=st.just("") | ANYTHING), max_size=3
).map(tuple)
COUNTS = st.integers(-(2**70), 2**70)
USAGES = st.builds(
    Usage, prompt_tokens=COUNTS, cached_tokens=COUNTS, generated_tokens=COUNTS,
    thinking_tokens=st.none() | COUNTS, cost=st.none() | st.floats(),
)  # fmt: skip
RESPONSES = st.lists(
    st.builds(ChatResponse, content=TEXTS, thinking=TEXTS, calls=CALLS, usage=USAGES), min_size=1, max_size=4
)


def conversation(policy: ChatScript, **changes: Any) -> ChatConversation:
    parts = {"declarations": DECLARED, "tools": SWE_TOOLS, "tool_format": "native", "keep_thinking": True}
    return ChatConversation(policy, [{"role": "user", "content": "hi"}], **{**parts, **changes})


async def play(responses: Sequence[ChatResponse], **changes: Any) -> Sequence[Message]:
    """Answer every response; return the messages of the last request."""
    remaining = iter(responses)
    policy = ChatScript(lambda _context: next(remaining))
    talk = conversation(policy, **changes)
    context = GenerationContext(key=make_key(), row=make_row())
    for step in range(len(responses)):
        before = len(talk)
        turn = await talk.respond(step=step, sampling=SamplingParams(), seed=0, context=context)
        assert 0 <= turn.prompt_tokens < 2**31
        assert 0 <= turn.generated_tokens < 2**31
        assert 0 <= turn.cached_tokens < 2**31
        assert turn.thinking_tokens is None or 0 <= turn.thinking_tokens < 2**31
        assert turn.cost is None or 0 <= turn.cost < float("inf")
        turn.reply.text.encode()
        assert len(talk) >= (turn.prompt_tokens or before)
        continuation = talk.answer(f"seen {step}")
        assert continuation.length > len(talk)
        talk.append(continuation, step=step)
        assert len(talk) == continuation.length
    policy = ChatScript(["end"])
    talk._policy = policy
    await talk.respond(step=len(responses), sampling=SamplingParams(), seed=0, context=context)
    assert len(talk.record()) == 0
    return policy.requests[0].messages


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("declared", [True, False])
@settings(max_examples=30, deadline=None)
@given(responses=RESPONSES)
def test_every_response_leads_to_a_valid_next_request(
    responses: list[ChatResponse], keep: bool, declared: bool
) -> None:
    changes: dict[str, Any] = {"keep_thinking": keep}
    if not declared:
        changes |= {"declarations": (), "tool_format": "xml"}
    messages = asyncio.run(play(responses, **changes))
    json.dumps(messages, ensure_ascii=False, allow_nan=False).encode()
    assert [m["content"] for m in messages if m["role"] in ("user", "tool")][
        -1
    ] == f"seen {len(responses) - 1}"
    open_calls: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            assert message["tool_call_id"] == open_calls.pop(0)
            continue
        assert not open_calls, "a call is not answered"
        if message["role"] == "assistant":
            assert message["content"].strip() or message.get("tool_calls")
            assert keep or "reasoning_content" not in message
            for call in message.get("tool_calls", ()):
                assert isinstance(json.loads(call["function"]["arguments"]), dict)
            open_calls = [call["id"] for call in message.get("tool_calls", ())]
            assert declared or not open_calls
            assert len(set(open_calls)) == len(open_calls)
    assert not open_calls


def test_estimates_count_bytes_and_caps_keep_head_and_tail() -> None:
    assert [estimate_tokens(text) for text in ("", "a", "abc", "abcd", "ää")] == [0, 1, 1, 2, 2]
    assert cap_estimated("a" * 300, 100) == ("a" * 300, 0)
    text, cut = cap_estimated("h" + "a" * 598 + "t", 100)
    assert (text[0], text[-1], cut) == ("h", "t", 300)
    assert estimate_tokens(text) < 120
