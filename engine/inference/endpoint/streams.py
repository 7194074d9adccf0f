"""Parsing of answers streamed as server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterable, Mapping
from typing import Any

from engine.inference.endpoint.answers import (
    MAX_CALLS,
    THINKING_FIELDS,
    GarbledAnswerError,
    OversizedAnswerError,
    ReportedError,
    read_content,
    read_json,
    read_list,
    read_text,
)
from engine.inference.endpoint.provider_state import CALL_FIELDS, MESSAGE_FIELDS, add_piece
from engine.tools.parser import MAX_RESPONSE_CHARS

_DRAIN_S = 1.0


async def events(parts: AsyncIterable[bytes]) -> AsyncGenerator[Any, None]:
    """Yield the JSON documents of an event stream up to its end. Raises GarbledAnswerError."""
    rest = bytearray()
    async for part in parts:
        *lines, last = part.split(b"\n")
        for line in lines:
            rest += line
            whole = bytes(rest)
            rest.clear()
            if not whole.startswith(b"data:"):
                continue
            data = whole[5:].strip()
            if data == b"[DONE]":
                await _drain(parts)
                return
            yield read_json(data)
        rest += last


async def _drain(parts: AsyncIterable[bytes]) -> None:
    """Read a stream to its end, so that its connection can serve another request."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_DRAIN_S):
            async for _ in parts:
                pass


class StreamedAnswer:
    """Body of a streamed response, assembled into the format of an unstreamed one."""

    def __init__(self) -> None:
        self._model = ""
        self._usage: dict[str, Any] | None = None
        self._finish_reason: object = None
        self._texts: dict[str, list[str]] = {}
        self._calls: list[tuple[dict[str, Any], list[str], list[str]]] = []
        """Provider state of each call, and the parts of its name and arguments."""
        self._state: dict[str, Any] = {}
        """Provider state of the message."""
        self._place: dict[object, int] = {}
        """Position of the call with each index."""
        self.size = 0
        """Characters received."""

    def add(self, chunk: object) -> None:
        """Add a part.

        Raises:
            GarbledAnswerError: it does not follow the chat completions interface.
            ReportedError: it holds an error.
            OversizedAnswerError: the message is too long.
            ProviderStateError: its provider state cannot be kept.
        """
        if not isinstance(chunk, dict):
            raise GarbledAnswerError(f"a part of the answer is a JSON {type(chunk).__name__}, not an object")
        if chunk.get("error"):
            raise ReportedError(chunk["error"])
        self._model = self._model or read_text(chunk.get("model"))
        if isinstance(chunk.get("usage"), dict):
            self._usage = chunk["usage"]
        for choice in read_list(chunk.get("choices"), "choices"):
            if isinstance(choice, dict) and not choice.get("index"):
                self._finish_reason = choice.get("finish_reason") or self._finish_reason
                if isinstance(choice.get("delta"), dict):
                    self._add_delta(choice["delta"])
        if self.size > MAX_RESPONSE_CHARS:
            raise OversizedAnswerError(f"the answer is longer than {MAX_RESPONSE_CHARS} characters")

    def _add_delta(self, delta: Mapping[str, Any]) -> None:
        for name in ("refusal", *THINKING_FIELDS):
            if isinstance(delta.get(name), str):
                self._add_text(self._texts.setdefault(name, []), delta[name])
        content, thinking = read_content(delta.get("content"))
        self._add_text(self._texts.setdefault("content", []), content)
        if thinking:
            self._add_text(self._texts.setdefault("reasoning_content", []), thinking)
        self.size += add_piece(self._state, delta, MESSAGE_FIELDS)
        for call in read_list(delta.get("tool_calls"), "tool_calls"):
            if isinstance(call, dict):
                self._add_call(call)

    def _add_call(self, call: Mapping[str, Any]) -> None:
        """Add a part of a call, selected by its index; a new identifier starts another call."""
        index, identifier = call.get("index"), read_text(call.get("id"))
        index = index if isinstance(index, int) else None
        place = self._place.get(index)
        if place is None or (identifier and self._calls[place][0].get("id", identifier) != identifier):
            place = self._place[index] = len(self._calls)
            self._calls.append(({}, [], []))
            if place >= MAX_CALLS:
                raise OversizedAnswerError(f"the answer has more than {MAX_CALLS} tool calls")
        self.size += add_piece(self._calls[place][0], call, CALL_FIELDS)
        function = call.get("function")
        if isinstance(function, dict):
            self._add_text(self._calls[place][1], function.get("name"))
            self._add_text(self._calls[place][2], function.get("arguments"))

    def _add_text(self, parts: list[str], text: object) -> None:
        if isinstance(text, str) and text:
            parts.append(text)
            self.size += len(text)

    def body(self) -> dict[str, Any]:
        """Return the whole response. Raises GarbledAnswerError if it was cut off."""
        if self._finish_reason is None:
            raise GarbledAnswerError("the stream ended in the middle of the answer")
        message: dict[str, Any] = {name: "".join(parts) for name, parts in self._texts.items()}
        message |= self._state
        message["tool_calls"] = [
            {**state, "function": {"name": "".join(name) or None, "arguments": "".join(arguments)}}
            for state, name, arguments in self._calls
        ]
        choice = {"message": message, "finish_reason": self._finish_reason}
        return {"model": self._model, "usage": self._usage, "choices": [choice]}
