"""The endpoint policy against a scripted server that misbehaves in every way there is."""

from __future__ import annotations

import asyncio
import json
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog

from engine.config.policies import EndpointPolicyConfig
from engine.errors import ContextLengthError, EndpointRefusedError, ModelError, SpendLimitError
from engine.inference.base import ChatRequest, ChatResponse, GenerationContext, SamplingParams
from engine.inference.endpoint import client, policy
from engine.inference.endpoint.keys import Endpoint
from engine.inference.endpoint.messages import estimate_tokens
from engine.inference.endpoint.policy import EndpointPolicy
from engine.models.chat.base import Message
from engine.tools.parser import NativeCall
from engine.tools.schemas import SWE_TOOLS
from tests.fakes.openai_server import OpenAIServer, Reply, openai_server
from tests.rollout_builders import make_key, make_row

KEY = "correct-horse-battery-staple"
TOOLS = [tool.json_schema() for tool in SWE_TOOLS.values()]
TALK: list[Message] = [{"role": "system", "content": "You mend code."}, {"role": "user", "content": "Go."}]
OK = Reply(content="fine")
FAILED = Reply(status=500, error={"message": "oops"})


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "FIRST_PAUSE_S", 0.001)


@asynccontextmanager
async def opened(
    server: OpenAIServer, *, key: str = KEY, book: Path | None = None, **settings: Any
) -> AsyncIterator[EndpointPolicy]:
    config = EndpointPolicyConfig(endpoint=server.url, **{"model": "m", "max_retries": 3, **settings})
    opened = EndpointPolicy(config, Endpoint(address=server.url, key=key), book=book)
    try:
        yield opened
    finally:
        await opened.close()


def request(messages: Sequence[Message] = TALK, *, tools: Any = (), **sampling: Any) -> ChatRequest:
    context = GenerationContext(key=make_key(), row=make_row())
    sampling_params = SamplingParams(**{"max_tokens": 64, **sampling})
    return ChatRequest(
        messages=messages, tools=tools, sampling=sampling_params, seed=2**62 + 5, context=context
    )


async def answer(replies: Any, *, tools: Any = (), **settings: Any) -> tuple[ChatResponse, OpenAIServer]:
    with openai_server(replies) as server:
        async with opened(server, **settings) as endpoint:
            sampling = {name: settings[name] for name in ("temperature", "top_p") if name in settings}
            return await endpoint.respond(request(tools=tools, **sampling)), server


both = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


async def test_a_request_holds_what_is_configured_and_nothing_else() -> None:
    _, server = await answer([OK], send_seed=False)
    assert server.requests == [{"model": "m", "messages": TALK, "max_tokens": 64}]
    _, server = await answer(
        [OK],
        tools=TOOLS,
        temperature=0.5,
        top_p=0.9,
        reasoning_effort="high",
        token_limit_name="max_completion_tokens",
        stream=True,
    )
    assert server.requests == [
        {
            "model": "m",
            "messages": TALK,
            "max_completion_tokens": 64,
            "temperature": 0.5,
            "top_p": 0.9,
            "reasoning_effort": "high",
            "seed": 5,
            "tools": TOOLS,
            "tool_choice": "auto",
            "parallel_tool_calls": False,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ]
    assert server.paths == ["/v1/chat/completions"]


@pytest.mark.parametrize("field", ["", "reasoning_content"])
async def test_a_conversation_is_sent_as_the_interface_defines_it(field: str) -> None:
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


async def test_only_the_key_and_plain_headers_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
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
async def test_native_calls_thinking_and_usage_come_back(stream: bool) -> None:
    usage = {
        "prompt_tokens": 1000,
        "completion_tokens": 50,
        "total_tokens": 1050,
        "prompt_tokens_details": {"cached_tokens": 900},
        "completion_tokens_details": {"reasoning_tokens": 40},
    }
    reply = Reply(
        content=None,
        message={"reasoning_content": "look first"},
        calls=[("execute_bash", '{"cmd": "ls"}'), ("finish", "{")],
        usage=usage,
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
async def test_a_cut_off_response_is_marked(stream: bool) -> None:
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
}


@both
@pytest.mark.parametrize("name", TRANSIENT)
async def test_what_passes_is_tried_again(name: str, stream: bool) -> None:
    response, server = await answer([TRANSIENT[name], TRANSIENT[name], OK], stream=stream)
    assert response.content == "fine"
    assert len(server.requests) == 3


@both
async def test_a_cut_stream_of_events_is_tried_again(stream: bool) -> None:
    broken = Reply(raw=b'data: {"choices": [{"delta": {"content": "a"}}]}\n\ndata: {"choi')
    response, server = await answer([broken, OK], stream=stream)
    assert response.content == "fine"
    assert len(server.requests) == 2


@both
async def test_retries_end(stream: bool) -> None:
    with openai_server([FAILED]) as server:
        async with opened(server, stream=stream, max_retries=2) as endpoint:
            with pytest.raises(ModelError, match="answered 500: oops"):
                await endpoint.respond(request())
    assert len(server.requests) == 3


async def test_no_server_is_a_model_error() -> None:
    with openai_server([OK]) as server:
        pass
    async with opened(server, max_retries=1) as endpoint:
        with pytest.raises(ModelError, match="connection to 127.0.0.1:"):
            await endpoint.respond(request())


@both
async def test_a_silent_server_times_out(stream: bool) -> None:
    response, server = await answer([Reply(hang="before"), OK], stream=stream, timeout_s=2.0)
    assert response.content == "fine"
    assert len(server.requests) == 2


async def test_a_stalled_stream_is_noticed_before_the_time_out() -> None:
    stalled = Reply(content="half of it", hang="middle")
    response, server = await answer([stalled, OK], stream=True, stall_timeout_s=0.5, timeout_s=600.0)
    assert response.content == "fine"
    assert server.disconnected == 1


async def test_cancelling_a_request_ends_it_at_the_server() -> None:
    with openai_server([Reply(hang="before")]) as server:
        async with opened(server) as endpoint:
            task = asyncio.create_task(endpoint.respond(request()))
            await until(lambda: server.in_flight == 1)
            task.cancel()
            await until(lambda: server.disconnected == 1)
            with pytest.raises(asyncio.CancelledError):
                await task


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


ENDLESS = {
    "one line": b"x" * 65_536,
    "comments": b": " + b"x" * 65_534 + b"\n\n",
    "text": b'data: {"choices": [{"delta": {"content": "' + b"y" * 65_536 + b'"}}]}\n\n',
    "calls": b'data: {"choices": [{"delta": {"tool_calls": [{"id": "a"}, {"id": "b"}]}}]}\n\n' * 100,
}


@pytest.mark.parametrize("kind", ENDLESS)
@both
async def test_an_endless_answer_is_cut_in_bounded_memory(
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


async def test_an_endless_refusal_is_cut_too(monkeypatch: pytest.MonkeyPatch) -> None:
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
async def test_what_every_request_would_meet_ends_the_run(name: str, stream: bool) -> None:
    reply, words = FATAL[name]
    with openai_server([reply]) as server:
        async with opened(server, stream=stream) as endpoint:
            for _ in range(2):
                with pytest.raises(EndpointRefusedError, match=words) as refused:
                    await endpoint.respond(request())
                assert KEY not in str(refused.value)
    assert len(server.requests) == 1


async def test_an_alias_can_be_declared() -> None:
    response, _ = await answer([Reply(content="hi", model="gpt-x-2026-01-01")], answers_as="gpt-x")
    assert response.content == "hi"


async def test_the_key_does_not_follow_a_redirect() -> None:
    with openai_server([OK]) as elsewhere, openai_server([OK]) as server:
        moved = Reply(status=307, headers={"Location": f"{elsewhere.url}/chat/completions"})
        server.script = lambda _body, _number: moved
        async with opened(server) as endpoint:
            with pytest.raises(EndpointRefusedError, match="redirects to 127.0.0.1"):
                await endpoint.respond(request())
    assert elsewhere.headers == []


async def test_a_full_context_ends_the_rollout_only() -> None:
    full = Reply(status=400, error={"code": "context_length_exceeded", "message": "too long"})
    with openai_server(lambda body, _: full if len(body["messages"]) > 2 else OK) as server:
        async with opened(server) as endpoint:
            for _ in range(policy.MAX_FAILED_IN_A_ROW + 1):
                with pytest.raises(ContextLengthError):
                    await endpoint.respond(request([*TALK, *TALK]))
            assert (await endpoint.respond(request())).content == "fine"
    assert len(server.requests) == policy.MAX_FAILED_IN_A_ROW + 2


async def test_many_failures_in_a_row_end_the_run() -> None:
    with openai_server([Reply(status=400, error={"message": "seed is not supported"})]) as server:
        async with opened(server) as endpoint:
            for _ in range(policy.MAX_FAILED_IN_A_ROW - 1):
                with pytest.raises(ModelError, match="seed is not supported"):
                    await endpoint.respond(request())
            for _ in range(3):
                with pytest.raises(EndpointRefusedError, match="20 requests in a row failed"):
                    await endpoint.respond(request())
    assert len(server.requests) == policy.MAX_FAILED_IN_A_ROW


async def test_a_success_starts_the_count_of_failures_anew() -> None:
    refused = Reply(status=400, error={"message": "bad"})
    with openai_server(lambda _body, number: OK if number % 10 == 9 else refused) as server:
        async with opened(server) as endpoint:
            results = [await attempt(endpoint) for _ in range(60)]
    assert results.count(None) == 6
    assert {type(one) for one in results if one} == {ModelError}


async def attempt(endpoint: EndpointPolicy) -> Exception | None:
    try:
        await endpoint.respond(request())
    except Exception as error:
        return error
    return None


async def test_rollouts_slow_down_together_at_rate_limits() -> None:
    with openai_server([OK]) as server:
        server.max_in_flight, server.pause_s = 4, 0.02
        async with opened(server, max_retries=8) as endpoint:
            responses = await asyncio.gather(*(endpoint.respond(request()) for _ in range(120)))
            metrics = await endpoint.take_metrics()
            assert metrics["endpoint/answered"] == 120
            assert metrics["endpoint/repeated"] == metrics["endpoint/rate_limited"] == server.refused > 0
            assert set((await endpoint.take_metrics()).values()) == {0.0}
    assert all(response.content == "fine" for response in responses)
    assert server.most_in_flight <= 4
    assert len(server.requests) == 120
    assert server.refused < 600  # without the window all would come again after every pause


async def test_spending_ends_the_run_and_is_bounded_by_what_is_in_flight(tmp_path: Path) -> None:
    settings: Any = {"input_price": 1000.0, "output_price": 1000.0, "spend_limit": 1.0}  # 0.12 a request
    with openai_server([OK]) as server:
        server.pause_s = 0.01
        async with opened(server, book=tmp_path / "spend.json", **settings) as endpoint:
            slots = asyncio.Semaphore(4)

            async def limited() -> Exception | None:
                async with slots:
                    return await attempt(endpoint)

            results = await asyncio.gather(*(limited() for _ in range(50)))
            assert {type(one) for one in results if one} == {SpendLimitError}
            assert 1.0 <= endpoint.spent <= 1.0 + 4 * 0.12 + 1e-9
            assert len(server.requests) == results.count(None) == round(endpoint.spent / 0.12)
        async with opened(server, book=tmp_path / "spend.json", **settings) as endpoint:
            assert isinstance(await attempt(endpoint), SpendLimitError)


async def test_money_for_answers_of_no_use_is_counted() -> None:
    useless = Reply(raw=json.dumps({"choices": [], "usage": {"prompt_tokens": 500}}).encode())
    with openai_server([useless]) as server:
        async with opened(server, input_price=10.0, output_price=10.0, max_retries=1) as endpoint:
            with pytest.raises(ModelError):
                await endpoint.respond(request())
            assert endpoint.spent == pytest.approx(2 * 500 * 10 / 1e6)


PRICES: Any = {"input_price": 1000.0, "output_price": 1000.0}
"""0.12 US dollars for a request that the server reports; estimates are near 0.09 before the first answer."""


@pytest.mark.parametrize(
    ("lost", "is_billed"),
    [
        (Reply(hang="before"), True),
        (Reply(content="half", cut=True), True),
        (Reply(raw=b"{nonsense"), True),
        (FAILED, False),
        (Reply(status=429, error={"message": "slow down"}), False),
    ],
)
async def test_lost_requests_are_counted_by_estimates(lost: Reply, is_billed: bool, tmp_path: Path) -> None:
    key = request().context.key
    with openai_server([lost, OK, lost, OK]) as server:
        book = tmp_path / "spend.json"
        async with opened(server, book=book, timeout_s=2.0, **PRICES) as endpoint:
            response = await endpoint.respond(request())
            assert response.usage.cost == pytest.approx(0.12), "of the answer alone"
            first = endpoint.spent - 0.12
            await endpoint.respond(request())
            second = endpoint.spent - 0.24 - first
            assert endpoint.spent_on(key) == pytest.approx(endpoint.spent)
            assert json.loads(book.read_text()) == {"us_dollars": endpoint.spent, "in_flight": 0.0}
            endpoint.release(key)
            assert endpoint.spent_on(key) == 0.0
    if is_billed:
        prompt = estimate_tokens(TALK)
        assert first == pytest.approx((prompt + 64) / 1000), "all that it might have generated"
        assert second == pytest.approx((prompt + 20) / 1000), "as many tokens as other responses have"
    else:
        assert first == pytest.approx(0.0)
        assert second == pytest.approx(0.0)


async def test_requests_that_never_reach_a_server_cost_nothing() -> None:
    with openai_server([OK]) as server:
        pass
    async with opened(server, max_retries=1, **PRICES) as endpoint:
        assert isinstance(await attempt(endpoint), ModelError)
        assert endpoint.spent == 0.0


async def test_cancelled_requests_are_counted_by_estimates() -> None:
    with openai_server([Reply(hang="before")]) as server:
        async with opened(server, **PRICES) as endpoint:
            task = asyncio.create_task(endpoint.respond(request()))
            await until(lambda: server.in_flight == 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert endpoint.spent == pytest.approx((estimate_tokens(TALK) + 64) / 1000)


async def test_rollouts_do_not_pay_for_rate_limits_with_their_time() -> None:
    slow = Reply(status=429, error={"message": "slow down"}, headers={"Retry-After": "0.4"})
    key = request().context.key
    with openai_server([slow, OK]) as server:
        async with opened(server) as endpoint:
            task = asyncio.create_task(endpoint.respond(request()))
            await until(lambda: endpoint.waited_seconds(key) > 0.3)
            await task
            waited = endpoint.waited_seconds(key)
            assert waited >= 0.4, "the pause that the endpoint asked for"
            server.pause_s = 0.5
            await endpoint.respond(request())
            assert endpoint.waited_seconds(key) < waited + 0.5, "time of answers counts"
            endpoint.release(key)
            assert endpoint.waited_seconds(key) == 0.0
        async with opened(server, requests_per_minute=1) as endpoint:
            await endpoint.respond(request())
            task = asyncio.create_task(endpoint.respond(request()))
            await until(lambda: endpoint.waited_seconds(key) > 0.3)
            assert not task.done()
            task.cancel()
            await asyncio.wait([task])


async def test_failures_that_are_no_rate_limits_cost_a_rollout_its_time() -> None:
    key = request().context.key
    with openai_server([Reply(hang="before"), OK]) as server:
        async with opened(server, timeout_s=1.0) as endpoint:
            began = time.monotonic()
            await endpoint.respond(request())
            assert endpoint.waited_seconds(key) <= time.monotonic() - began - 1.0


async def test_a_check_learns_the_context_and_sends_the_runs_own_parameters() -> None:
    with openai_server([OK]) as server:
        server.models = [{"id": "other", "max_model_len": 5}, {"id": "m", "max_model_len": 32768}]
        async with opened(server, temperature=0.0) as endpoint:
            await asyncio.gather(*(endpoint.check(TOOLS) for _ in range(5)))
            assert endpoint.max_context == 32768
    assert server.paths == ["/v1/models", "/v1/chat/completions"]
    assert server.requests[0]["tools"] == TOOLS
    assert server.requests[0]["temperature"] == 0.0


@pytest.mark.parametrize(
    ("reply", "settings", "words"),
    [
        (
            Reply(status=400, error={"message": "seed unsupported"}),
            {},
            "seed unsupported; what is sent",
        ),
        (FAILED, {}, "oops"),
        (Reply(status=401, error={"message": KEY}), {}, "refuses the key"),
        (
            Reply(content="x", usage=None),
            {"spend_limit": 1.0, "input_price": 1.0, "output_price": 1.0},
            "reports no usage",
        ),
    ],
)
async def test_a_check_refuses_what_cannot_work(reply: Reply, settings: Any, words: str) -> None:
    with openai_server([reply]) as server:
        async with opened(server, max_retries=1, **settings) as endpoint:
            with pytest.raises(EndpointRefusedError, match=words) as refused:
                await endpoint.check(TOOLS)
            sent = len(server.requests)
            with pytest.raises(EndpointRefusedError, match=words):
                await endpoint.check(TOOLS)
    assert len(server.requests) == sent
    assert KEY not in str(refused.value)


async def test_logs_and_representations_hold_no_key() -> None:
    with structlog.testing.capture_logs() as logs, openai_server([FAILED, OK]) as server:
        async with opened(server) as endpoint:
            await endpoint.respond(request())
            shown = f"{endpoint!r} {vars(endpoint)!r} {vars(endpoint._client)!r}"
    assert {entry["event"] for entry in logs} == {"endpoint_retry", "endpoint_closed"}
    assert KEY not in f"{logs} {shown}"


async def test_calls_nobody_declared_are_not_read() -> None:
    response, _ = await answer([Reply(content="text", calls=[("f", "{}")])])
    assert response.calls == ()
