"""The host's end of the agent protocol: one request at a time over a byte stream, with typed errors.

Every backend supplies a reader and a writer, over any transport. The transport counts as broken when a reply
is late (the request's time plus a grace), too large for its operation, or malformed
(``engine.sandbox.responses``). The client then refuses all further use, because replies of an agent in an
unknown state cannot be trusted. A cancelled call sends a cancellation, and its late reply is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from engine.errors import (
    NoGreetingError,
    SandboxDiedError,
    SandboxError,
    SandboxResourceError,
    SandboxTransportError,
)
from engine.sandbox import responses
from engine.sandbox.agent.wire import decode, frame
from engine.sandbox.responses import Answer, Greeting, Reply

T = TypeVar("T")

GRACE_S = 10.0
"""Seconds after a request's deadline within which the agent may still reply."""


class AgentClient:
    """Client of the agent behind ``reader`` and ``writer``.

    Args:
        post_mortem: returns why the sandbox ended; empty when the backend does not know.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        post_mortem: Callable[[], str] = lambda: "",
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._post_mortem = post_mortem
        self._lock = asyncio.Lock()
        self._answered = 0
        self._due: deque[Answer[Any]] = deque()
        """Unanswered requests, in order."""
        self._size: int | None = None
        self._broken: SandboxError | None = None

    async def hello(self, timeout_s: float) -> Greeting:
        """Wait for the agent's greeting and return it. Raises SandboxError when none arrives."""
        try:
            async with asyncio.timeout(timeout_s):
                greeting = await self._read_frame(responses.GREETING_BYTES, responses.GREETING_VALUES)
        except TimeoutError:
            raise self._break(NoGreetingError(f"no greeting from the agent within {timeout_s:g} s")) from None
        if greeting.get("hello") != 1:
            raise self._break(SandboxTransportError("the agent speaks another protocol version"))
        return self._parsed(responses.greeting, greeting)

    async def call(self, op: str, answer: Answer[T], *, timeout_s: float = 30.0, **payload: Any) -> T:
        """Perform one operation and return its parsed response.

        Args:
            answer: size limits and parser of the response.

        Raises:
            OSError: the operation failed the way a system call fails (the matching subclass).
            SandboxError: the sandbox itself failed.
        """
        async with self._lock:
            if self._broken is not None:
                raise self._broken
            number = self._answered + len(self._due) + 1
            request = frame({"op": op, "id": number, **payload})
            self._due.append(answer)
            try:
                async with asyncio.timeout(timeout_s + GRACE_S):
                    reply = await self._exchange(number, request)
            except TimeoutError:
                text = f"no reply to '{op}' within {timeout_s:g} + {GRACE_S:g} s"
                raise self._break(SandboxTransportError(text)) from None
            except asyncio.CancelledError:
                self._writer.write(frame({"op": "cancel"}))
                raise
        if "errno" in reply:
            raise _failure(*self._parsed(responses.failure, reply))
        return self._parsed(answer.read, reply)

    def _parsed(self, read: Callable[[Reply], T], reply: Reply) -> T:
        try:
            return read(reply)
        except ValueError as error:
            raise self._malformed(str(error)) from None

    async def _exchange(self, number: int, request: bytes) -> Reply:
        try:
            self._writer.write(request)
            await self._writer.drain()
        except OSError:
            raise self._break(self._died()) from None
        while True:
            # Requests are answered once and in order; replies to cancelled calls are dropped.
            answer = self._due[0]
            reply = await self._read_frame(answer.max_bytes, answer.max_values)
            if reply.get("id") != self._answered + 1:
                raise self._break(SandboxTransportError("the agent sent a reply without a request"))
            self._due.popleft()
            self._answered += 1
            if self._answered == number:
                return reply

    async def _read_frame(self, max_bytes: int, max_values: int) -> Reply:
        # A call may be cancelled between length and body: the length is kept for the next call.
        try:
            if self._size is None:
                self._size = int.from_bytes(await self._reader.readexactly(4), "big")
            if self._size > max_bytes:
                raise ValueError(f"a frame of {self._size} bytes")
            body = await self._reader.readexactly(self._size)
            self._size = None
            value = decode(body, max_values)
        except (asyncio.IncompleteReadError, OSError):
            raise self._break(self._died()) from None
        except ValueError as error:
            raise self._malformed(str(error)) from None
        if not isinstance(value, dict):
            raise self._malformed("not a dict")
        return value

    def _malformed(self, what: str) -> SandboxError:
        return self._break(SandboxTransportError(f"the agent sent a malformed message: {what}"))

    @property
    def usable(self) -> bool:
        """Return whether the stream is open at both ends, as far as known without a request."""
        return self._broken is None and not self._reader.at_eof()

    def fail(self, error: SandboxError) -> None:
        """Fail the pending call and all further ones with ``error``."""
        self._break(error)

    def _break(self, error: SandboxError) -> SandboxError:
        if self._broken is None:
            self._broken = error
            self._writer.close()
        return self._broken

    def _died(self) -> SandboxDiedError:
        detail = self._post_mortem()
        return SandboxDiedError("the sandbox ended while it was in use" + (f": {detail}" if detail else ""))

    async def close(self) -> None:
        """Close the stream; safe to call twice."""
        self._break(SandboxDiedError("the sandbox is closed"))
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


def _failure(number: int, message: str, resource: bool) -> Exception:
    if resource:
        return SandboxResourceError(f"{message} ({os.strerror(number)})")
    return OSError(number, message)
