"""The endpoint policy against a scripted server that injects faults."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import structlog

from engine.errors import ContextLengthError, EndpointRefusedError, ModelError
from engine.inference.base import ChatResponse
from engine.inference.endpoint import client, policy
from engine.models.chat.base import Message
from engine.tools.parser import NativeCall
from tests.builders.web.endpoint_builders import FAILED, KEY, OK, TALK, TOOLS, attempt, opened, request, until
from tests.fakes.openai_server import OpenAIServer, Reply, openai_server


async def answer(
    replies: Any, *, tools: Any = (), on_hang: Callable[[], None] = lambda: None, **settings: Any
) -> tuple[ChatResponse, OpenAIServer]:
    with openai_server(replies) as server:
        server.on_hang = on_hang
        async with opened(server, **settings) as endpoint:
            sampling = {name: settings[name] for name in ("temperature", "top_p") if name in settings}
            return await endpoint.respond(request(tools=tools, **sampling)), server


both = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


async def test_requests_contain_only_configured_parameters() -> None:
    _, server = await answer([OK], send_seed=False)
    assert server.requests == [{"model": "m", "messages": TALK, "max_tokens": 64}]
    sampling: dict[str, Any] = {"temperature": 0.5, "top_p": 0.9, "reasoning_effort": "high", "stream": True}
    _, server = await answer([OK], tools=TOOLS, token_limit_name="max_completion_tokens", **sampling)
    assert server.requests == [
        {
            "model": "m", "messages": TALK, "max_completion_tokens": 64, "seed": 5, "tools": TOOLS,
            "tool_choice": "auto", "parallel_tool_calls": False, "stream_options": {"include_usage": True},
            **sampling,
        }
    ]  # fmt: skip
    assert server.paths == ["/v1/chat/completions"]
    extra = {"top_k": 20, "chat_template_kwargs": {"enable_thinking": False}}
    _, server = await answer([OK], extra_body=extra, send_seed=False)
    assert server.requests == [{"model": "m", "messages": TALK, "max_tokens": 64, **extra}]


@pytest.mark.parametrize("field", ["", "reasoning_content"])
async def test_conversations_are_sent_in_the_chat_completions_format(field: str) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"a": "\ud800ü"}}}
    talk: list[Message] = [
        *TALK,
        {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "name": "f", "content": "out\ud800"},
    ]
    with openai_server([OK]) as server:
        async with opened(server, thinking_field=field) as endpoint:
            await endpoint.respond(request(talk, tools=TOOLS))
    sent_call, sent_result = server.requests[0]["messages"][2:]
    function = sent_call["tool_calls"][0]["function"]
    assert json.loads(function.pop("arguments")) == {"a": "\ud800ü"}
    thinking = {field: "hm"} if field else {}
    assert sent_call == {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f"}}],
        **thinking,
    }
    assert sent_result == {"role": "tool", "tool_call_id": "c1", "content": "out�"}


async def test_openai_environment_variables_add_no_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "ambient-key-0815")
    monkeypatch.setenv("OPENAI_ORG_ID", "ambient-org-0815")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "ambient-project-0815")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Ambient: ambient-0815\nAuthorization: Bearer ambient-0815")
    _, server = await answer([OK])
    assert server.headers[0]["authorization"] == f"Bearer {KEY}"
    assert "ambient" not in json.dumps(server.headers[0])
    _, server = await answer([OK], key="")
    assert "authorization" not in server.headers[0]


@both
async def test_responses_include_native_calls_thinking_and_usage(stream: bool) -> None:
    details = {
        "prompt_tokens_details": {"cached_tokens": 900},
        "completion_tokens_details": {"reasoning_tokens": 40},
    }
    reply = Reply(
        content=None,
        message={"reasoning_content": "look first"},
        calls=[("execute_bash", '{"cmd": "ls"}'), ("finish", "{")],
        usage={"prompt_tokens": 1000, "completion_tokens": 50, "total_tokens": 1050, **details},
    )
    response, _ = await answer(
        [reply], tools=TOOLS, stream=stream, input_price=1.0, cached_price=0.1, output_price=4.0
    )
    first, second = response.calls
    assert first == NativeCall(name="execute_bash", arguments='{"cmd": "ls"}')
    assert "not valid JSON" in second.error
    assert (response.content, response.thinking, response.stopped) == ("", "look first", True)
    assert response.usage.cached_tokens == 900
    assert response.usage.thinking_tokens == 40
    assert response.usage.cost == pytest.approx((100 + 90 + 200) / 1e6)


@both
async def test_truncated_responses_are_marked(stream: bool) -> None:
    response, _ = await answer([Reply(content="half", finish_reason="length")], stream=stream)
    assert (response.content, response.stopped) == ("half", False)


TRANSIENT: dict[str, Reply] = {
    "server error": FAILED,
    "rate limit": Reply(status=429, error={"message": "slow"}, headers={"Retry-After": "0"}),
    "cut off": Reply(content="half of it", cut=True),
    "not JSON": Reply(raw=b"<html>Bad gateway</html>" * 200),
    "no choices": Reply(raw=b'{"choices": []}'),
    "error inside": Reply(raw=b'{"error": {"code": 502, "message": "provider died"}}'),
    "compressed": Reply(content="x", headers={"Content-Encoding": "gzip"}),
    "cut events": Reply(raw=b'data: {"choices": [{"delta": {"content": "a"}}]}\n\ndata: {"choi'),
}


@both
@pytest.mark.parametrize("name", TRANSIENT)
async def test_transient_failures_are_retried(name: str, stream: bool) -> None:
    response, server = await answer([TRANSIENT[name], TRANSIENT[name], OK], stream=stream)
    assert response.content == "fine"
    assert len(server.requests) == 3


@both
async def test_retries_stop_at_the_configured_number(stream: bool) -> None:
    with openai_server([FAILED]) as server:
        async with opened(server, stream=stream, max_retries=2) as endpoint:
            with pytest.raises(ModelError, match="answered 500: oops"):
                await endpoint.respond(request())
    assert len(server.requests) == 3


@both
async def test_a_silent_server_times_out(stream: bool, skip_time: Callable[[float], None]) -> None:
    response, server = await answer(
        [Reply(hang="before"), OK], stream=stream, timeout_s=600.0, on_hang=partial(skip_time, 601.0)
    )
    assert response.content == "fine"
    assert server.disconnected >= 1


async def test_stalled_streams_are_detected_before_the_timeout(skip_time: Callable[[float], None]) -> None:
    stalled = Reply(content="half of it", hang="middle")
    settings: Any = {"stall_timeout_s": 2.0, "timeout_s": 600.0, "on_hang": partial(skip_time, 3.0)}
    response, server = await answer([stalled, OK], stream=True, **settings)
    assert response.content == "fine"
    assert server.disconnected == 1


async def test_cancelled_requests_disconnect_from_the_server() -> None:
    with openai_server([Reply(hang="before")]) as server:
        async with opened(server) as endpoint:
            task = asyncio.create_task(endpoint.respond(request()))
            await until(lambda: server.in_flight == 1)
            task.cancel()
            await until(lambda: server.disconnected == 1)
            with pytest.raises(asyncio.CancelledError):
                await task


ENDLESS = {
    "one line": b"x" * 65_536,
    "comments": b": " + b"x" * 65_534 + b"\n\n",
    "text": b'data: {"choices": [{"delta": {"content": "' + b"y" * 65_536 + b'"}}]}\n\n',
    "calls": b'data: {"choices": [{"delta": {"tool_calls": [{"id": "a"}, {"id": "b"}]}}]}\n\n' * 100,
}


@pytest.mark.parametrize(
    ("kind", "stream"), [("one line", False), ("comments", True), ("text", True), ("calls", True)]
)
async def test_endless_answers_are_rejected_in_bounded_memory(
    kind: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "MAX_BODY_BYTES", 8 << 20)
    with openai_server([Reply(content="x", endless=ENDLESS[kind])]) as server:
        async with opened(server, stream=stream) as endpoint:
            tracemalloc.start()
            try:
                with pytest.raises(ModelError, match="longer than|more than"):
                    await endpoint.respond(request())
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
    assert len(server.requests) == 1
    assert peak < 64 << 20


async def test_oversized_refusals_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MAX_BODY_BYTES", 1 << 20)
    refusal = Reply(status=500, error={"message": "x" * (2 << 20)})
    with openai_server([refusal]) as server:
        async with opened(server) as endpoint:
            with pytest.raises(ModelError, match="longer than"):
                await endpoint.respond(request())


FATAL: dict[str, tuple[Reply, str]] = {
    "key": (Reply(status=401, error={"message": f"bad key {KEY}"}), "refuses the key"),
    "quota": (Reply(status=429, error={"type": "insufficient_quota", "message": "pay"}), "out of quota"),
    "model": (Reply(status=404, error={"message": "no model m"}), "no such model"),
    "another model": (Reply(content="hi", model="m-mini"), "answered with model 'm-mini'"),
}


@both
@pytest.mark.parametrize("name", FATAL)
async def test_permanent_refusals_end_the_run(name: str, stream: bool) -> None:
    reply, words = FATAL[name]
    with openai_server([reply]) as server:
        async with opened(server, stream=stream) as endpoint:
            for _ in range(2):
                with pytest.raises(EndpointRefusedError, match=words) as refused:
                    await endpoint.respond(request())
                assert KEY not in str(refused.value)
    assert len(server.requests) == 1


async def test_declared_model_aliases_are_accepted() -> None:
    response, _ = await answer([Reply(content="hi", model="gpt-x-2026-01-01")], answers_as="gpt-x")
    assert response.content == "hi"


async def test_redirects_are_refused_without_forwarding_the_key() -> None:
    with openai_server([OK]) as elsewhere, openai_server([OK]) as server:
        moved = Reply(status=307, headers={"Location": f"{elsewhere.url}/chat/completions"})
        server.script = lambda _body, _number: moved
        async with opened(server) as endpoint:
            with pytest.raises(EndpointRefusedError, match="redirects to 127.0.0.1"):
                await endpoint.respond(request())
    assert elsewhere.headers == []


async def test_a_full_context_ends_the_rollout_but_not_the_run() -> None:
    full = Reply(status=400, error={"code": "context_length_exceeded", "message": "too long"})
    with openai_server(lambda body, _: full if len(body["messages"]) > 2 else OK) as server:
        async with opened(server) as endpoint:
            for _ in range(policy.MAX_FAILED_IN_A_ROW + 1):
                with pytest.raises(ContextLengthError):
                    await endpoint.respond(request([*TALK, *TALK], max_tokens=16))
            assert (await endpoint.respond(request())).content == "fine"
    assert len(server.requests) == policy.MAX_FAILED_IN_A_ROW + 2


async def test_consecutive_failures_end_the_run() -> None:
    with openai_server([Reply(status=400, error={"message": "seed is not supported"})]) as server:
        async with opened(server) as endpoint:
            for _ in range(policy.MAX_FAILED_IN_A_ROW - 1):
                with pytest.raises(ModelError, match="seed is not supported"):
                    await endpoint.respond(request())
            for _ in range(3):
                with pytest.raises(EndpointRefusedError, match="20 requests in a row failed"):
                    await endpoint.respond(request())
    assert len(server.requests) == policy.MAX_FAILED_IN_A_ROW


async def test_a_success_resets_the_count_of_failures() -> None:
    refused = Reply(status=400, error={"message": "bad"})
    with openai_server(lambda _body, number: OK if number % 10 == 9 else refused) as server:
        async with opened(server) as endpoint:
            results = [await attempt(endpoint) for _ in range(60)]
    assert results.count(None) == 6
    assert {type(result) for result in results if result} == {ModelError}


async def test_logs_and_representations_omit_the_key() -> None:
    with structlog.testing.capture_logs() as logs, openai_server([FAILED, OK]) as server:
        async with opened(server) as endpoint:
            await endpoint.respond(request())
            shown = f"{endpoint!r} {vars(endpoint)!r} {vars(endpoint._client)!r}"
    assert {entry["event"] for entry in logs} == {"endpoint_retry", "endpoint_closed"}
    assert KEY not in f"{logs} {shown}"


async def test_calls_without_declared_tools_are_ignored() -> None:
    response, _ = await answer([Reply(content="text", calls=[("f", "{}")])])
    assert response.calls == ()
