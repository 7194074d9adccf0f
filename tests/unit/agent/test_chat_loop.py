"""The agent loop over chat policies: messages, calls, limits and malformed responses."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from engine.config.rollout import AgentConfig
from engine.errors import ContextLengthError
from engine.inference.base import ChatResponse, GenerationContext, Usage
from engine.inference.endpoint.messages import wire_messages
from engine.sandbox.base import ExecResult
from engine.tools.formats import ToolFormat
from engine.tools.parser import NativeCall
from engine.types import Step, TerminationReason
from tests.builders.rollout_builders import SUBMIT, ChatScript, quick_agent
from tests.fakes.memory_sandbox import printed
from tests.unit.agent.agent_builders import LOOK, RUN, roll

VIEW = NativeCall(name="file_editor", arguments='{"command": "view", "path": "pkg/m.py"}')
BASH = NativeCall(name="execute_bash", arguments={"cmd": "true"})
FINISH = NativeCall(name="submit", arguments="{}")


def native(**changes: Any) -> AgentConfig:
    return quick_agent(**{"tool_format": "native", **changes})


def response(*calls: NativeCall, content: str = "", thinking: str = "", **rest: Any) -> ChatResponse:
    return ChatResponse(content=content, thinking=thinking, calls=calls, **rest)


def used(prompt: int = 0, generated: int = 0, **rest: Any) -> dict[str, Any]:
    return {"usage": Usage(prompt_tokens=prompt, generated_tokens=generated, **rest)}


async def test_native_calls_are_declared_and_answered_by_their_ids() -> None:
    policy = ChatScript([response(VIEW, content="I look.", thinking="where?"), response(FINISH)])
    outcome, steps = await roll(policy, native())
    assert outcome.termination is TerminationReason.SUBMITTED
    assert [step.call.name for step in steps if step.call] == ["file_editor", "finish"]
    assert len(outcome.tokens) == 0
    assert steps[0].thought == "where?\n\nI look."
    assert steps[0].observation == "    1  def f(a):\n    2      return a - 1"
    first, second = policy.requests
    assert [tool["function"]["name"] for tool in first.tools] == [
        "file_editor", "execute_bash", "search", "finish",
    ]  # fmt: skip
    assert [message["role"] for message in first.messages] == ["user"]
    assert second.messages[: len(first.messages)] == first.messages
    assistant, answer = second.messages[-2:]
    (sent,) = assistant["tool_calls"]
    written = {"role": "assistant", "content": "I look.", "reasoning_content": "where?"}
    assert assistant == {**written, "tool_calls": [sent]}
    function = {"name": "file_editor", "arguments": VIEW.arguments}
    assert sent == {"id": sent["id"], "type": "function", "function": function}
    called = {"tool_call_id": sent["id"], "name": "file_editor"}
    assert answer == {"role": "tool", "content": steps[0].observation, **called}


SIGNED: dict[str, Any] = {
    "reasoning_details": [{"type": "reasoning.encrypted", "data": "abc"}],
    "tool_calls": [{"id": "gemini-1", "extra_content": {"google": {"thought_signature": "c2lnbg=="}}}],
}


@pytest.mark.parametrize("history", ["keep", "drop"])
async def test_provider_state_is_stored_on_the_step_and_returned_unchanged(history: str) -> None:
    policy = ChatScript([response(VIEW, provider_state=SIGNED), response(FINISH)])
    _, steps = await roll(policy, native(thinking_history=history))
    assert [step.provider_state for step in steps] == [SIGNED, None]
    assistant, answer = policy.requests[1].messages[-2:]
    kept = SIGNED if history == "keep" else {"tool_calls": SIGNED["tool_calls"]}
    assert assistant["provider_state"] == kept
    assert [call["id"] for call in assistant["tool_calls"]] == ["gemini-1"]
    assert answer["tool_call_id"] == "gemini-1"
    wire, _ = wire_messages([assistant, answer], thinking_field="")
    function = {"name": "file_editor", "arguments": VIEW.arguments}
    assert wire["tool_calls"] == [{**SIGNED["tool_calls"][0], "type": "function", "function": function}]
    assert wire.get("reasoning_details") == kept.get("reasoning_details")


@pytest.mark.parametrize("ids", [[{"id": "a"}, {"id": "a"}], [{"id": "a"}], [{}, {"id": "b"}]])
async def test_calls_without_unique_identifiers_get_generated_identifiers(ids: list[dict[str, str]]) -> None:
    policy = ChatScript([response(VIEW, VIEW, provider_state={"tool_calls": ids}), response(FINISH)])
    await roll(policy, native())
    assistant, first, second = policy.requests[1].messages[-3:]
    sent = [call["id"] for call in assistant["tool_calls"]]
    assert sent == [first["tool_call_id"], second["tool_call_id"]] == ["c00000x00", "c00000x01"]


async def test_null_counts_as_a_missing_argument() -> None:
    look = NativeCall(
        name="file_editor", arguments='{"command": "view", "path": "pkg/m.py", "view_range": null}'
    )
    outcome, steps = await roll(
        ChatScript([response(look), response(NativeCall(name="submit", arguments="null"))]), native()
    )
    assert outcome.termination is TerminationReason.SUBMITTED
    assert steps[0].call is not None
    assert dict(steps[0].call.arguments) == {"command": "view", "path": "pkg/m.py"}


async def test_a_context_learned_from_a_refusal_limits_running_rollouts() -> None:
    def look(_context: GenerationContext) -> ChatResponse:
        policy.max_context = 2000
        return response(VIEW, **used(1900, 50))

    policy = ChatScript(look)
    outcome, steps = await roll(policy, native(min_response=64))
    assert outcome.termination is TerminationReason.MAX_CONTEXT
    assert len(steps) == 1


async def test_steps_record_the_reported_usage() -> None:
    reported = used(700, 90, cached_tokens=512, thinking_tokens=60, cost=0.0125)
    policy = ChatScript([response(VIEW, **reported), response(FINISH)])
    policy.version = 3
    _, (first, second) = await roll(policy, native())
    assert (first.prompt_tokens, first.generated_tokens, first.cached_tokens) == (700, 90, 512)
    assert (first.thinking_tokens, first.cost, first.policy_version) == (60, 0.0125, 3)
    assert (second.thinking_tokens, second.cost) == (None, None)


async def test_text_calls_are_parsed_without_declared_tools() -> None:
    policy = ChatScript([LOOK, response(VIEW, content="no call here"), SUBMIT])
    outcome, steps = await roll(policy, quick_agent())
    assert outcome.termination is TerminationReason.SUBMITTED
    assert [step.call.name if step.call else "" for step in steps] == ["file_editor", "", "finish"]
    assert all(request.tools == () for request in policy.requests)
    assert [message["role"] for message in policy.requests[-1].messages] == [
        "user", "assistant", "user", "assistant", "user",
    ]  # fmt: skip
    assert not any("tool_calls" in message for message in policy.requests[-1].messages)
    assert "no tool call was found" in steps[1].error


@pytest.mark.parametrize(
    ("content", "thinking"),
    [
        ("<think>\nbecause\n</think>\n\n", ""),
        ("\n <think>because</think>", ""),
        ("because</think>\n", ""),
        ("", "because"),
        ("", "\nbecause\n"),
    ],
)
@pytest.mark.parametrize("history", ["keep", "drop"])
@pytest.mark.parametrize("tool_format", ["xml", "native"])
async def test_thinking_is_recognised_in_every_position(
    tool_format: ToolFormat, history: str, content: str, thinking: str
) -> None:
    call = LOOK.partition("</think>")[2].strip()
    is_native = tool_format == "native"
    answer = response(*[VIEW] * is_native, content=content + ("" if is_native else call), thinking=thinking)
    policy = ChatScript([answer, response(FINISH) if is_native else SUBMIT])
    outcome, steps = await roll(policy, quick_agent(tool_format=tool_format, thinking_history=history))
    assert outcome.termination is TerminationReason.SUBMITTED
    assert steps[0].thought == "because"
    assert "because" in steps[0].response
    assistant = policy.requests[1].messages[-2]
    assert ("because" in json.dumps(assistant)) is (history == "keep")
    assert ("reasoning_content" in assistant) is (history == "keep" and bool(thinking))
    if not is_native:
        assert call in assistant["content"]


async def test_parallel_calls_are_all_answered_and_none_is_run() -> None:
    policy = ChatScript([response(VIEW, BASH, VIEW), response(FINISH)])
    outcome, steps = await roll(policy, native(step_reminder=True))
    assert outcome.termination is TerminationReason.SUBMITTED
    assert steps[0].call is None
    assert "more than one tool call" in steps[0].error
    assistant, *answers = policy.requests[1].messages[-4:]
    ids = [call["id"] for call in assistant["tool_calls"]]
    assert len(set(ids)) == 3
    assert [answer["tool_call_id"] for answer in answers] == ids
    assert {answer["content"] for answer in answers} == {steps[0].observation}
    assert "Steps Remaining: 5" in steps[0].observation


BROKEN = [
    (NativeCall(name="execute_bash", arguments='{"cmd": "ls'), "not valid JSON"),
    (NativeCall(name="execute_bash", arguments='["ls"]'), "must be an object"),
    (NativeCall(name="execute_bash", arguments='{"cmd": "a", "cmd": "b"}'), "gives a key twice"),
    (NativeCall(name="execute_bash", arguments="[" * 100_000), "not valid JSON"),
    (NativeCall(name="execute_bash", arguments={"cmd": {1, 2}}), "cannot be written as JSON"),
    (NativeCall(name="execute_bash", arguments={"cmd": float("nan")}), "is not JSON"),
    (NativeCall(name="execute_bash", arguments="{}", error="it was cut off"), "it was cut off"),
    (NativeCall(name="rm -rf /\ud800\0", arguments="{}"), "unknown tool"),
    (NativeCall(name="execute_bash", arguments='{"cmd": "' + "x" * (5 << 20) + '"}'), "longer than"),
    (NativeCall(name="n" * 5000, arguments="{}"), "unknown tool"),
    (NativeCall(name="execute_bash", arguments='{"cmd": "\\ud800\\u0000"}'), ""),
]


@pytest.mark.parametrize(("call", "error"), BROKEN)
async def test_invalid_calls_are_answered_and_returned_in_valid_form(call: NativeCall, error: str) -> None:
    policy = ChatScript([response(call), response(FINISH)])
    outcome, steps = await roll(policy, native())
    assert (outcome.termination, outcome.error) == (TerminationReason.SUBMITTED, "")
    assert error in steps[0].error
    assert bool(steps[0].error) is (steps[0].call is None)
    assistant, answer = policy.requests[1].messages[-2:]
    json.dumps(policy.requests[1].messages, ensure_ascii=False).encode()  # raises for invalid text
    (sent,) = assistant["tool_calls"]
    assert isinstance(json.loads(sent["function"]["arguments"]), dict)
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", sent["function"]["name"])
    assert answer["tool_call_id"] == sent["id"]
    assert answer["name"] == sent["function"]["name"]
    assert len(answer["content"]) < 1000


async def test_a_flood_of_calls_is_bounded() -> None:
    policy = ChatScript([response(*[VIEW] * 5000), response(FINISH)])
    outcome, steps = await roll(policy, native())
    assert outcome.termination is TerminationReason.SUBMITTED
    assert len(policy.requests[1].messages) < 50
    ids = [message["tool_call_id"] for message in policy.requests[1].messages if message["role"] == "tool"]
    assert len(set(ids)) == len(ids)
    assert len(steps[0].response) < 10_000


@pytest.mark.parametrize("content", ["", " \n", "I cannot help with that.", "\0\ud800"])
@pytest.mark.parametrize("tool_format", ["xml", "native"])
async def test_empty_responses_and_refusals_do_not_end_the_rollout(
    tool_format: ToolFormat, content: str
) -> None:
    submit = response(FINISH) if tool_format == "native" else SUBMIT
    policy = ChatScript([content, submit])
    outcome, steps = await roll(policy, quick_agent(tool_format=tool_format))
    assert outcome.termination is TerminationReason.SUBMITTED
    assert "no tool call was found" in steps[0].error
    assistant, answer = policy.requests[1].messages[-2:]
    assert assistant["content"].strip(), "endpoints refuse empty messages"
    json.dumps(assistant, ensure_ascii=False).encode()
    assert answer == {"role": "user", "content": steps[0].observation}


async def test_max_tokens_follows_the_reported_usage() -> None:
    config = quick_agent(max_context=1000, max_response=300, min_response=50)
    script: list[str | ChatResponse] = [
        response(content=LOOK, **used(400, 100)),
        response(content=LOOK, **used(800, 20)),
        SUBMIT,
    ]
    policy = ChatScript(script)
    outcome, steps = await roll(policy, config)
    assert outcome.termination is TerminationReason.SUBMITTED
    limits = [request.sampling.max_tokens for request in policy.requests]
    assert limits[:2] == [300, 300]
    new = 1000 - 820 - limits[2]
    assert 5 < new < 60, "an estimate of the observation alone"
    assert [step.prompt_tokens for step in steps] == [400, 800, 0]


@pytest.mark.parametrize("reported", [True, False])
async def test_a_conversation_that_fills_the_context_ends_with_max_context(reported: bool) -> None:
    async def noisy(_command: str) -> ExecResult:
        return printed("y" * 1500)

    answer = response(content=RUN, **(used(100, 20) if reported else {}))
    config = quick_agent(max_context=500, max_response=100)
    outcome, steps = await roll(ChatScript([answer]), config, command=noisy)
    assert outcome.termination is TerminationReason.MAX_CONTEXT
    assert len(steps) == 1
    assert len(outcome.tokens) == 0


async def test_declared_functions_count_in_the_first_prompt() -> None:
    policy = ChatScript([response(FINISH)])
    outcome, _ = await roll(policy, native(max_context=500, max_response=100))
    assert outcome.termination is TerminationReason.MAX_CONTEXT
    assert policy.requests == []


async def test_the_context_limit_of_the_endpoint_ends_with_max_context() -> None:
    def full(context: GenerationContext) -> str:
        if context.steps:
            raise ContextLengthError("400: the maximum context length is 8192 tokens")
        return LOOK

    outcome, steps = await roll(ChatScript(full), quick_agent())
    assert (outcome.termination, outcome.error, len(steps)) == (TerminationReason.MAX_CONTEXT, "", 1)
    policy = ChatScript([LOOK])
    policy.max_context = 64
    outcome, _ = await roll(policy, quick_agent(max_steps=99))
    assert outcome.termination is TerminationReason.MAX_CONTEXT


@pytest.mark.parametrize(
    ("usage", "max_context", "reason"),
    [
        (used(100, 50), 4096, TerminationReason.MAX_RESPONSE),
        ({}, 4096, TerminationReason.MAX_RESPONSE),
        (used(100, 50), 150, TerminationReason.MAX_CONTEXT),
        (used(60, 30), 150, TerminationReason.MAX_CONTEXT),
    ],
)
async def test_truncated_responses_are_not_run_and_end_the_rollout(
    usage: dict[str, Any], max_context: int, reason: TerminationReason
) -> None:
    config = quick_agent(max_context=max_context, max_response=149)
    outcome, (step,) = await roll(ChatScript([response(content=SUBMIT, stopped=False, **usage)]), config)
    assert outcome.termination is reason
    assert step.call is None
    generated = step.generated_tokens
    assert step.error == (
        f"the response was cut off after {generated} tokens; nothing was run"
        if generated
        else "the response was cut off; nothing was run"
    )


@pytest.mark.parametrize(
    ("answer", "history", "sends", "counts"),
    [
        (response(VIEW, thinking="x" * 600), "keep", True, True),
        (response(VIEW, thinking="x" * 600), "drop", True, False),
        (response(VIEW, thinking="x" * 600), "keep", False, False),
        (response(VIEW, content="<think>xx</think>"), "keep", False, True),
        (response(VIEW, content="<think>xx</think>"), "drop", False, False),
        (response(VIEW), "keep", True, False),
    ],
    ids=["kept", "dropped", "not sent", "in the text", "dropped from the text", "hidden"],
)
@pytest.mark.parametrize("reported", [True, False])
async def test_thinking_counts_only_if_later_requests_include_it(
    answer: ChatResponse, history: str, sends: bool, counts: bool, reported: bool
) -> None:
    thinking = 200 if reported else None
    answer = replace(answer, **used(300, 250, thinking_tokens=thinking))
    plain = replace(answer, content="", thinking="", **used(300, 250, thinking_tokens=0))
    limits = []
    for first in (answer, plain):
        policy = ChatScript([first, response(FINISH)])
        policy.sends_thinking = sends
        await roll(policy, native(thinking_history=history, max_context=3000, max_response=2900))
        limits.append(policy.requests[1].sampling.max_tokens)
    text = answer.thinking or answer.content.removeprefix("<think>").removesuffix("</think>")
    expected = 200 if reported else -(-len(text) // 3)
    assert limits[0] - limits[1] == (0 if counts else expected)


async def test_requests_are_not_changed_by_later_turns() -> None:
    policy = ChatScript([response(VIEW), response(VIEW), response(FINISH)])
    _, steps = await roll(policy, native())
    assert [len(request.messages) for request in policy.requests] == [1, 3, 5]
    assert [request.seed for request in policy.requests] == [0, 1, 2]
    assert [len(request.context.steps) for request in policy.requests] == [0, 1, 2]
    assert isinstance(steps[0], Step)
