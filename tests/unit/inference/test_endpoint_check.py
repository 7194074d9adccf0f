"""The request that an endpoint policy sends before a run begins."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine.errors import EndpointRefusedError
from tests.builders.web.endpoint_builders import FAILED, KEY, OK, TOOLS, opened
from tests.fakes.openai_server import Reply, openai_server

CALL = Reply(calls=[("finish", '{"command": "submit"}')])


async def test_check_reads_the_context_and_sends_the_run_parameters() -> None:
    with openai_server([OK]) as server:
        server.models = [{"id": "other", "max_model_len": 5}, {"id": "m", "max_model_len": 32768}]
        async with opened(server, temperature=0.0) as endpoint:
            await asyncio.gather(*(endpoint.check(TOOLS) for _ in range(5)))
            assert endpoint.max_context == 32768
    assert server.paths == ["/v1/models", "/v1/chat/completions"]
    assert server.requests[0]["tools"] == TOOLS
    assert server.requests[0]["temperature"] == 0.0


@pytest.mark.parametrize(
    ("models", "context"),
    [
        (5, None),
        (True, None),
        ([{"id": "m", "max_model_len": True}], None),
        ([{"id": "m", "max_model_len": -1, "context_length": 4096}], 4096),
    ],
)
async def test_a_check_ignores_invalid_lists_of_models(models: Any, context: int | None) -> None:
    with openai_server([OK]) as server:
        server.models = models
        async with opened(server) as endpoint:
            await endpoint.check(TOOLS)
            assert endpoint.max_context == context


@pytest.mark.parametrize(
    ("reply", "settings", "words"),
    [
        (Reply(status=400, error={"message": "seed unsupported"}), {}, "seed unsupported; what is sent"),
        (FAILED, {}, "oops"),
        (Reply(status=401, error={"message": KEY}), {}, "refuses the key"),
        (
            Reply(content="x", usage=None),
            {"spend_limit": 1.0, "input_price": 1.0, "output_price": 1.0},
            "reports no usage",
        ),
    ],
)
async def test_check_refuses_unusable_endpoints(reply: Reply, settings: Any, words: str) -> None:
    with openai_server([reply]) as server:
        async with opened(server, max_retries=1, **settings) as endpoint:
            with pytest.raises(EndpointRefusedError, match=words) as refused:
                await endpoint.check(TOOLS)
            sent = len(server.requests)
            with pytest.raises(EndpointRefusedError, match=words):
                await endpoint.check(TOOLS)
    assert len(server.requests) == sent
    assert KEY not in str(refused.value)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_check_returns_a_tool_call_unchanged(stream: bool) -> None:
    signed = {"extra_content": {"google": {"thought_signature": "c2lnbg=="}}}
    call = {
        "id": "gemini-1",
        "type": "function",
        "function": {"name": "finish", "arguments": "null"},
        **signed,
    }
    with openai_server([Reply(message={"tool_calls": [call]}), OK]) as server:
        async with opened(server, stream=stream) as endpoint:
            await endpoint.check(TOOLS)
    asked, returned = server.requests
    assert "Call the tool execute_bash once" in asked["messages"][0]["content"]
    [_, message, answer] = returned["messages"]
    function = {"name": "finish", "arguments": "{}"}
    assert message["tool_calls"] == [{"id": "gemini-1", "type": "function", "function": function, **signed}]
    assert (answer["role"], answer["tool_call_id"]) == ("tool", "gemini-1")


async def test_check_refuses_endpoints_that_reject_their_own_tool_call() -> None:
    def answer(body: Any, _: int) -> Reply:
        return CALL if len(body["messages"]) == 1 else Reply(status=400, error={"message": "no signature"})

    with openai_server(answer) as server:
        async with opened(server) as endpoint:
            with pytest.raises(
                EndpointRefusedError, match="sent the model's own tool call back.*no signature"
            ):
                await endpoint.check(TOOLS)


@pytest.mark.parametrize(
    "content",
    [
        '<tool_call>\n{"name": "finish", "arguments": {"command": "submit"}}\n</tool_call>',
        'Sure.\n{"name": "execute_bash", "arguments": {"cmd": "ls"}}',
        '```json\n{ "function" : "finish", "parameters": {}}\n```',
        "<function=finish>\n<parameter=command>submit</parameter>\n</function>",
        '[TOOL_CALLS][{"name": "finish"}]',
        'execute_bash(cmd="ls")',
        "Let me think. " * 10_000 + '{"name": "finish"}',
    ],
)
async def test_check_refuses_tool_calls_returned_as_text(content: str) -> None:
    with openai_server([Reply(content=content)]) as server:
        async with opened(server) as endpoint:
            with pytest.raises(EndpointRefusedError, match="returned a tool call as text.*agent.tool_format"):
                await endpoint.check(TOOLS)
        async with opened(server) as endpoint:
            await endpoint.check(())  # the agent parses calls in text formats


@pytest.mark.parametrize(
    "reply", [OK, Reply(content='{"name": "Bob"}'), Reply(content="<tool_call>", finish_reason="length")]
)
async def test_check_accepts_models_that_make_no_call(reply: Reply) -> None:
    with openai_server([reply]) as server:
        async with opened(server) as endpoint:
            await endpoint.check(TOOLS)
    assert len(server.requests) == 1
