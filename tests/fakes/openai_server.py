"""An OpenAI-compatible server on loopback that answers by a script and misbehaves on demand."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

USAGE = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}


@dataclass(frozen=True, kw_only=True)
class Reply:
    """One response; ``status`` other than 200 sends ``error`` instead of a message."""

    content: Any = ""
    calls: Sequence[tuple[str, str]] = ()
    """Names and arguments."""
    message: Mapping[str, Any] = field(default_factory=dict)
    """More fields of the message."""
    finish_reason: str | None = None
    """None: what follows from the message."""
    logprobs: Any = None
    """``logprobs`` of the choice; None leaves it out."""
    prompt_logprobs: Any = None
    """``prompt_logprobs`` of the answer; None leaves it out."""
    usage: Any = field(default_factory=lambda: dict(USAGE))
    model: str | None = None
    """None: the model asked for."""
    status: int = 200
    error: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    raw: bytes | None = None
    """A body instead of all that."""
    cut: bool = False
    """Close the connection in the middle of the answer."""
    hang: str = ""
    """``before`` the answer, or in the ``middle`` of it: nothing more is sent."""
    endless: bytes = b""
    """Sent over and over after the beginning of the answer."""

    def body(self, asked: str) -> dict[str, Any]:
        message = {"role": "assistant", "content": self.content, **self.message}
        if self.calls:
            message["tool_calls"] = [
                {"id": f"call_{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
                for n, (name, arguments) in enumerate(self.calls)
            ]
        finish = self.finish_reason or ("tool_calls" if self.calls else "stop")
        choice = {"index": 0, "message": message, "finish_reason": finish}
        if self.logprobs is not None:
            choice["logprobs"] = self.logprobs
        return {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": asked if self.model is None else self.model,
            "choices": [choice],
            "usage": self.usage,
            **({"prompt_logprobs": self.prompt_logprobs} if self.prompt_logprobs is not None else {}),
        }

    def chunks(self, asked: str) -> list[dict[str, Any]]:
        """The parts of a stream: texts in halves, arguments of calls in halves, then reason and usage."""
        body = self.body(asked)
        [choice] = body.pop("choices")
        usage = body.pop("usage")
        deltas: list[dict[str, Any]] = [{"role": "assistant"}]
        for name, value in choice["message"].items():
            if isinstance(value, str) and name != "role":
                deltas += [{name: value[: len(value) // 2]}, {name: value[len(value) // 2 :]}]
            elif isinstance(value, dict | list) and name != "tool_calls":
                deltas.append({name: value})
        for index, call in enumerate(choice["message"].get("tool_calls", ())):
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            half = len(arguments) // 2
            deltas += [
                {"tool_calls": [{**call, "index": index, "function": {"name": name, "arguments": ""}}]},
                {"tool_calls": [{"index": index, "function": {"arguments": arguments[:half]}}]},
                {"tool_calls": [{"index": index, "function": {"arguments": arguments[half:]}}]},
            ]
        parts = [{**body, "choices": [{"index": 0, "delta": delta}]} for delta in deltas]
        last = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
        return [*parts, {**body, "choices": [last]}, {**body, "choices": [], "usage": usage}]


Script = Callable[[dict[str, Any], int], Reply]
"""From a request's body and its number to the reply."""


class OpenAIServer:
    """What the server was asked, and how it answers.

    ``max_in_flight`` refuses more requests at once with 429 and ``retry_after``.
    """

    def __init__(self, script: Script) -> None:
        self.script = script
        self.url = ""
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.models: list[dict[str, Any]] = []
        self.refused = 0
        self.in_flight = 0
        self.most_in_flight = 0
        self.max_in_flight: int | None = None
        self.retry_after = "0.05"
        self.pause_s = 0.0
        """Time that an answer takes."""
        self.sent_bytes = 0
        self.on_hang: Callable[[], None] = lambda: None
        """Called, in the server's thread, where it sends nothing more."""
        self.disconnected = 0
        """Clients that went before their answer was complete."""

    async def list_models(self, request: web.Request) -> web.Response:
        self._note(request)
        return web.json_response({"object": "list", "data": self.models})

    async def complete(self, request: web.Request) -> web.StreamResponse:
        self._note(request)
        body = await request.json()
        if self.max_in_flight is not None and self.in_flight >= self.max_in_flight:
            self.refused += 1
            error = {"error": {"message": "slow down", "type": "requests", "code": "rate_limit_exceeded"}}
            return web.json_response(error, status=429, headers={"Retry-After": self.retry_after})
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            self.requests.append(body)
            reply = self.script(body, len(self.requests) - 1)
            await asyncio.sleep(self.pause_s)
            return await self._answer(request, body, reply)
        except (asyncio.CancelledError, ConnectionError):
            self.disconnected += 1
            raise
        finally:
            self.in_flight -= 1

    async def _answer(self, request: web.Request, body: dict[str, Any], reply: Reply) -> web.StreamResponse:
        if reply.hang == "before":
            await self._hang()
        if reply.status != 200:
            return web.json_response({"error": reply.error}, status=reply.status, headers=reply.headers)
        stream = bool(body.get("stream"))
        parts = _parts(reply, body["model"], stream)
        kind = "text/event-stream" if stream else "application/json"
        response = web.StreamResponse(headers={"Content-Type": kind, **reply.headers})
        if not reply.endless:
            response.content_length = sum(map(len, parts))
        await response.prepare(request)
        if reply.cut or reply.hang or reply.endless:
            parts = parts[: len(parts) // 2]
        for part in parts:
            await self._write(response, part)
        while reply.endless:
            await self._write(response, reply.endless)
        if reply.hang:
            await self._hang()
        if reply.cut:
            assert request.transport is not None
            request.transport.abort()
        return response

    async def _hang(self) -> None:
        self.on_hang()
        await asyncio.Event().wait()

    async def _write(self, response: web.StreamResponse, part: bytes) -> None:
        await response.write(part)
        self.sent_bytes += len(part)

    def _note(self, request: web.Request) -> None:
        self.paths.append(request.path)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})


def _parts(reply: Reply, asked: str, stream: bool) -> list[bytes]:
    if reply.raw is not None:
        return [reply.raw[place : place + 1000] for place in range(0, len(reply.raw), 1000)]
    if stream:
        return [f"data: {json.dumps(chunk)}\n\n".encode() for chunk in reply.chunks(asked)] + [
            b"data: [DONE]\n\n"
        ]
    text = json.dumps(reply.body(asked)).encode()
    return [text[: len(text) // 2], text[len(text) // 2 :]]


@contextmanager
def openai_server(script: Script | Sequence[Reply]) -> Iterator[OpenAIServer]:
    """A running server; of a sequence the last reply is repeated."""
    if not callable(script):
        replies = script
        script = lambda _body, number: replies[min(number, len(replies) - 1)]  # noqa: E731
    server = OpenAIServer(script)
    loop = asyncio.new_event_loop()
    application = web.Application(client_max_size=1 << 30)
    application.router.add_get("/v1/models", server.list_models)
    application.router.add_post("/v1/chat/completions", server.complete)
    runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=1.0)

    async def start() -> None:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        server.url = f"http://{host}:{port}/v1"

    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(start(), loop).result(30)
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()
