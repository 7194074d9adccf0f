"""The API server's HTTP side: who asks, may they, which fault strikes, and the answer or the stream."""

from __future__ import annotations

import asyncio
import json
import ssl
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable

from aiohttp import web

from tests.fakes.cluster.api.auth import Auth
from tests.fakes.cluster.api.calls import Call, parse
from tests.fakes.cluster.api.errors import ApiError, conflict, gone, internal, too_many_requests
from tests.fakes.cluster.api.rest import Answer, Rest, event
from tests.fakes.cluster.api.store import Store
from tests.fakes.cluster.counters import Counters
from tests.fakes.cluster.faults import Fault, FaultKind, Faults

_BEFORE = (
    FaultKind.TOO_MANY_REQUESTS,
    FaultKind.SERVER_ERROR,
    FaultKind.FORBIDDEN,
    FaultKind.CONFLICT,
    FaultKind.HANG,
    FaultKind.RESET,
    FaultKind.SLOW,
)
_AFTER = (FaultKind.CREATED_BUT_ERROR, FaultKind.CREATED_BUT_RESET)
_JSON = "application/json"
_VERSION = {"major": "1", "minor": "33", "gitVersion": "v1.33.0+fake"}

PREFIX = "/_fake/"
"""Path of the switches, for administrators only; see ``tests.fakes.cluster.process``."""


class Server:
    """Serves the API on 127.0.0.1.

    Args:
        execute: serves pods/exec.
        switch: works a switch by its name and the JSON of its arguments.
        bookmark_every_s: pause between a silent watch's bookmarks; a minute on a real cluster.
    """

    def __init__(
        self,
        store: Store,
        rest: Rest,
        auth: Auth,
        faults: Faults,
        counters: Counters,
        *,
        execute: Callable[[Call, web.BaseRequest], Awaitable[web.StreamResponse]],
        switch: Callable[[str, bytes], Awaitable[bytes]],
        bookmark_every_s: float,
    ) -> None:
        self.store = store
        self.rest = rest
        self.auth = auth
        self.faults = faults
        self.counters = counters
        self.execute = execute
        self.switch = switch
        self.bookmark_every_s = bookmark_every_s
        self.port = 0
        self._runner: web.ServerRunner | None = None
        self._transports: weakref.WeakSet[asyncio.Transport] = weakref.WeakSet()

    async def start(self, context: ssl.SSLContext | None) -> None:
        """Listen; ``port`` says where afterwards."""
        self._runner = web.ServerRunner(
            web.Server(self._handle, access_log=None), handler_cancellation=True, shutdown_timeout=0.2
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=context).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Close every connection."""
        if self._runner is None:
            return
        for transport in list(self._transports):
            transport.abort()  # a polite end of TLS would wait for the client
        await self._runner.cleanup()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.transport is not None:
            self._transports.add(request.transport)
        try:
            user = self.auth.user(request)
            if request.path.startswith(PREFIX):
                self.auth.check_admin(user)
                data = await self.switch(request.path.removeprefix(PREFIX), await request.read())
                return web.Response(body=data, content_type=_JSON)
            call = parse(request, user)
            if request.path == "/version":
                return _response(Answer(200, json.dumps(_VERSION).encode()))
            if call is None:
                raise ApiError(404, "NotFound", "the server could not find the requested resource")
            return await self._serve(call, request)
        except ApiError as error:
            self.counters.codes[error.code] += 1
            return web.Response(
                status=error.code,
                body=json.dumps(error.status()).encode(),
                content_type=_JSON,
                headers=error.headers,
            )

    async def _serve(self, call: Call, request: web.BaseRequest) -> web.StreamResponse:
        plural = call.plural
        self.counters.requests[call.verb, plural] += 1
        self.auth.check(call)
        call.body = await request.read()
        name = call.target() if self.faults.all() else call.name
        where = {"verb": call.verb, "resource": plural, "name": name}
        if fault := self.faults.draw(*_BEFORE, **where):
            await self._strike(fault, call, request)
        if call.subresource == "exec":
            return await self.execute(call, request)
        if call.verb == "watch":
            return await self._watch(call, request, where)
        stale = self.faults.draw(FaultKind.STALE_LIST, **where) if call.verb == "list" else None
        answer = self.rest.answer(call, behind=stale.behind if stale else 0)
        if fault := self.faults.draw(*_AFTER, **where):
            if fault.kind is FaultKind.CREATED_BUT_RESET:
                await self._reset(request)
            raise internal("injected after the work was done")
        if self.faults.draw(FaultKind.HALF_OPEN, **where):
            return await self._stop_halfway(answer, request)
        self.counters.codes[answer.code] += 1
        return _response(answer)

    async def _strike(self, fault: Fault, call: Call, request: web.BaseRequest) -> None:
        match fault.kind:
            case FaultKind.TOO_MANY_REQUESTS:
                message = "the server has received too many requests and has asked us to try again later"
                raise too_many_requests(message, 1)
            case FaultKind.SERVER_ERROR:
                raise internal("injected")
            case FaultKind.FORBIDDEN:
                self.auth.strike(call)
            case FaultKind.CONFLICT:
                raise conflict(call.resource, call.name)
            case FaultKind.SLOW:
                await asyncio.sleep(fault.delay_s)
            case FaultKind.HANG:
                self.counters.codes[0] += 1
                await asyncio.Event().wait()
            case FaultKind.RESET:
                await self._reset(request)

    async def _reset(self, request: web.BaseRequest) -> None:
        self.counters.codes[0] += 1
        if request.transport is not None:
            request.transport.abort()
        await asyncio.Event().wait()  # until the lost connection cancels this handler

    async def _stop_halfway(self, answer: Answer, request: web.BaseRequest) -> web.StreamResponse:
        self.counters.codes[0] += 1
        response = web.StreamResponse(status=answer.code, headers={"Content-Type": _JSON})
        response.content_length = len(answer.data)
        await response.prepare(request)
        await response.write(answer.data[: len(answer.data) // 2])
        await asyncio.Event().wait()
        return response

    async def _watch(self, call: Call, request: web.BaseRequest, where: dict[str, str]) -> web.StreamResponse:
        refused = self.faults.draw(FaultKind.GONE, **where)
        events = _once(gone()) if refused else self.rest.watch(call, self.bookmark_every_s)
        twice = self.faults.draw(FaultKind.DUPLICATE, **where)
        silent = self.faults.draw(FaultKind.HALF_OPEN, **where)
        dropped = self.faults.draw(FaultKind.DROP_WATCH, **where)
        response = web.StreamResponse(headers={"Content-Type": _JSON})
        response.enable_chunked_encoding()
        await response.prepare(request)
        self.counters.codes[200] += 1
        try:
            async with asyncio.timeout(dropped.delay_s if dropped else silent.delay_s if silent else None):
                async for data in events:
                    await response.write(data)
                    if twice:
                        await response.write(data)
        except TimeoutError:
            if silent and not dropped:
                await asyncio.Event().wait()
            await self._reset(request)
        except ConnectionError:
            return response  # the client has left
        await response.write_eof()
        return response


async def _once(error: ApiError) -> AsyncIterator[bytes]:
    yield event("ERROR", json.dumps(error.status()).encode())


def _response(answer: Answer) -> web.Response:
    return web.Response(status=answer.code, body=answer.data, content_type=_JSON)
