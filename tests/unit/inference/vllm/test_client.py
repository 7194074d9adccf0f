"""The client against failing servers: cut connections, silence, malformed answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from engine.errors import EngineError
from engine.inference.vllm.clients.client import VllmClient
from engine.inference.vllm.clients.stalls import StallWatch
from tests.unit.models.small import prompt, request

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(**handlers: Handler) -> AsyncIterator[str]:
    """Serve each handler under the route of its name; yield the address."""
    routes = {
        "generate": "/inference/v1/generate", "metrics": "/metrics", "version": "/version",
        "rpc": "/collective_rpc", "reset": "/reset_prefix_cache", "pause": "/pause", "resume": "/resume",
    }  # fmt: skip
    app = web.Application()
    for name, handler in handlers.items():
        app.router.add_route("*", routes[name], handler)
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def client_of(address: str, **settings: Any) -> AsyncIterator[VllmClient]:
    client = VllmClient(address, **settings)
    try:
        yield client
    finally:
        await client.close()


def event(*ids: int, **choice: Any) -> bytes:
    content = [{"token_id": token, "logprob": -0.5} for token in ids]
    data = {"choices": [{"token_ids": ids, "logprobs": {"content": content}, **choice}]}
    return f"data: {json.dumps(data)}\n\n".encode()


def streaming(*chunks: bytes, then: Callable[[web.Request], Awaitable[None]] | None = None) -> Handler:
    async def handle(asked: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(asked)
        for chunk in chunks:
            await response.write(chunk)
        if then is not None:
            await then(asked)
        if asked.transport is None:
            return response
        if chunks[-1].endswith(b"[DONE]\n\n"):
            await response.write_eof()
        else:
            asked.transport.close()  # cut off
        return response

    return handle


async def hang(asked: web.Request) -> None:
    """Wait until the client disconnects."""
    while asked.transport is not None and not asked.transport.is_closing():
        await asyncio.sleep(0.01)


async def raised_by(action: Awaitable[Any]) -> EngineError:
    with pytest.raises(EngineError) as raised:
        await action
    return raised.value


END = b"data: [DONE]\n\n"


async def test_events_may_be_split_anywhere() -> None:
    whole = event(7, 8) + event(2, finish_reason="stop") + END
    for cut in range(1, len(whole) - len(END), 7):
        handler = streaming(whole[:cut], whole[cut:])
        async with serving(generate=handler) as address, client_of(address) as client:
            assert (await client.generate(request(prompt(4)), request_id="r")).ids == (7, 8, 2)


async def test_cut_streams_are_reported_as_lost_with_their_tokens() -> None:
    async with serving(generate=streaming(event(7, 8))) as address, client_of(address) as client:
        error = await raised_by(client.generate(request(prompt(4)), request_id="r"))
    assert (error.kind, error.tokens.ids) == ("lost", (7, 8))


async def test_streams_without_a_finish_reason_are_reported_as_lost() -> None:
    async with serving(generate=streaming(event(7), END)) as address, client_of(address) as client:
        error = await raised_by(client.generate(request(prompt(4)), request_id="r"))
    assert (error.kind, error.tokens.ids) == ("lost", (7,))


async def test_unterminated_events_are_reported_as_garbage() -> None:
    async with (
        serving(generate=streaming(b"data: " + b"x" * (2 << 20))) as address,
        client_of(address) as client,
    ):
        assert (await raised_by(client.generate(request(prompt(4)), request_id="r"))).kind == "garbage"


async def test_servers_without_new_tokens_are_reported_as_stalled(
    skip_time: Callable[[float], None],
) -> None:
    async def stall(asked: web.Request) -> None:
        skip_time(3.0)
        await hang(asked)

    async with (
        serving(generate=streaming(event(7), then=stall)) as address,
        client_of(address, stall_timeout_s=2) as client,
    ):
        error = await raised_by(client.generate(request(prompt(4)), request_id="r"))
    assert (error.kind, error.tokens.ids) == ("stalled", (7,))


async def test_the_stall_watch_expires_without_progress_of_any_request(clock: Callable[[], float]) -> None:
    watch = StallWatch(2.0)

    async def waited(seconds: float) -> float:
        async with watch.watch():
            await asyncio.sleep(seconds)
        return clock()

    async def sampled() -> None:
        for _ in range(10):
            await asyncio.sleep(0.5)
            watch.progress()

    assert (await asyncio.gather(waited(5.5), sampled()))[0] == pytest.approx(5.5), "a queue is no stall"
    with pytest.raises(TimeoutError):
        await waited(5.0)
    assert clock() == pytest.approx(7.5)
    watch.suspend()
    assert await waited(9.0) == pytest.approx(16.5), "a paused server samples nothing"
    watch.resume()
    with pytest.raises(TimeoutError):
        await waited(9.0)
    assert clock() == pytest.approx(18.5)


async def test_unreachable_servers_are_reported_as_lost() -> None:
    async with serving() as address:
        pass
    async with client_of(address) as client:
        assert (await raised_by(client.generate(request(prompt(4)), request_id="r"))).kind == "lost"
        assert not await client.healthy()


@pytest.mark.parametrize(
    ("status", "kind"), [(400, "refused"), (404, "unloaded"), (500, "lost"), (503, "lost")]
)
async def test_the_http_status_determines_the_kind_of_error(status: int, kind: str) -> None:
    async def handle(asked: web.Request) -> web.StreamResponse:
        return web.Response(status=status, text="the reason")

    async with serving(generate=handle) as address, client_of(address) as client:
        error = await raised_by(client.generate(request(prompt(4)), request_id="r"))
    assert error.kind == kind
    assert "the reason" in str(error)


async def test_connections_are_not_reused_after_a_server_error() -> None:
    """uvicorn closes the connection after an exception in the application."""
    ports = []

    async def handle(asked: web.Request) -> web.StreamResponse:
        assert asked.transport is not None
        ports.append(asked.transport.get_extra_info("peername")[1])
        return web.Response(status=500)

    async with serving(version=handle) as address, client_of(address) as client:
        for _ in range(2):
            await raised_by(client.check())
    assert ports[0] != ports[1]


async def test_slow_answers_are_reported_as_stalled() -> None:
    async def handle(asked: web.Request) -> web.StreamResponse:
        await hang(asked)
        return web.Response()

    async with serving(metrics=handle) as address, client_of(address, timeout_s=0.3) as client:
        error = await raised_by(client.metrics())
    assert error.kind == "stalled"
    assert "/metrics within 0.3 s" in str(error)


@pytest.mark.parametrize("version", ["0.31.2", "0.33.0", "1.0", "nightly", ""])
async def test_unsupported_versions_are_refused_with_the_remedy(version: str) -> None:
    async def handle(asked: web.Request) -> web.StreamResponse:
        return web.json_response({"version": version})

    async with serving(version=handle) as address, client_of(address) as client:
        error = await raised_by(client.check())
    assert error.kind == "refused"
    assert f"vLLM {version};" in str(error)
    assert "make vllm" in str(error)


@pytest.mark.parametrize(
    "text", ["", "no json", "[]", '{"results": null}', '{"results": ["x"]}', '{"results": []}']
)
async def test_malformed_answers_are_reported_as_garbage(text: str) -> None:
    async def handle(asked: web.Request) -> web.StreamResponse:
        return web.Response(text=text)

    async with serving(rpc=handle) as address, client_of(address) as client:
        assert (await raised_by(client.load_weights(Path("/w"), 1))).kind == "garbage"
    assert client.version == 0


async def test_failed_resets_of_the_prefix_cache_are_reported() -> None:
    async def handle(asked: web.Request) -> web.StreamResponse:
        return web.json_response({"success": False})

    async with serving(reset=handle) as address, client_of(address) as client:
        assert (await raised_by(client.reset_prefix_cache())).kind == "refused"


async def test_requests_include_the_key() -> None:
    async def handle(asked: web.Request) -> web.StreamResponse:
        assert asked.headers["Authorization"] == "Bearer secret"
        return web.json_response({"version": "0.1"})

    async with serving(version=handle) as address, client_of(address, api_key="secret") as client:
        assert (await raised_by(client.check())).kind == "refused"
