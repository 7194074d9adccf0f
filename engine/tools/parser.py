"""Parser of a response into one validated tool call; ``engine.tools.rendering`` is the inverse for text.

Calls are searched for after the thinking only. A response must contain exactly one complete call; a mere
mention of an opening tag counts as prose. Values are lossless. In XML exactly one newline after
``<parameter=K>`` and one before ``</parameter>`` are layout when both are present; nothing else is stripped.
A parameter ends at the first ``</parameter>`` that another parameter or the function's end follows, so values
may contain stray tags. Training, evaluation and the warm start all use this parser.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine.tools.base import printable
from engine.tools.formats import READERS, BrokenCall, FoundCall, ToolFormat, checked_arguments
from engine.tools.schemas import SWE_TOOLS, CallError, Tools, validate_call
from engine.types import ToolCall

THINK_START = "<think>"
THINK_END = "</think>"
_WRAPPER = re.compile(r"<tool_call>\s*+\Z")
"""Tag that some model families wrap around a call in XML."""

MAX_RESPONSE_CHARS = 4 << 20
"""Longest response that is parsed; token limits usually apply long before."""
MAX_MESSAGE_CHARS = 600
"""Longest error for the model; errors quote its own text, which may be long nonsense."""
_SEVERAL = (
    "the response contains more than one tool call and none was run; every response must contain exactly one"
)
_EXAMPLES: Mapping[ToolFormat, str] = {
    "xml": "<function=NAME>, one <parameter=KEY>VALUE</parameter> per argument, </function>",
    "native": '<tool_call>{"name": NAME, "arguments": {...}}</tool_call>',
    "words": "NAME VALUE",
}


@dataclass(frozen=True, slots=True)
class ParsedResponse:
    """A parsed response: its thought, and a call or the reason for a missing one."""

    thought: str
    """Everything before the call, thinking markers, call wrappers and outer whitespace removed."""
    call: ToolCall | None
    error: str = ""
    has_call: bool = False
    """Whether the response holds a call in the format, valid or not; mentions do not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeCall:
    """A call in a model family's own format, as its chat template's parser read it."""

    name: str
    arguments: Mapping[str, Any] | str
    """An object, or the JSON text of one."""
    error: str = ""
    """Reason why the call could not be read; empty when it could."""


def parse(
    text: str, tool_format: ToolFormat, tools: Tools = SWE_TOOLS, *, thinking_open: bool | None = None
) -> ParsedResponse:
    """Parse a whole response's text, thinking included (turn markers removed).

    A response must hold exactly one call; anything else gives ``call=None`` and an ``error`` written for the
    model.

    Args:
        thinking_open: whether the prompt opened the thinking, so that the text begins inside of it; None
            when unknown.
    """
    if len(text) > MAX_RESPONSE_CHARS:
        return _too_long(text)
    body = thinking_end(text, tool_format, tools, thinking_open)
    if body is None:
        return unclosed_thinking(text)
    return _parse(text, body, tool_format, tools)


def parse_content(
    content: str, tool_format: ToolFormat, tools: Tools = SWE_TOOLS, *, thinking: str = ""
) -> ParsedResponse:
    """Parse a response's content after its thinking; ``thinking`` is the first part of the thought.

    Without ``thinking`` the content is parsed as in ``parse``: some families write thinking as text.
    """
    if not thinking:
        return parse(content, tool_format, tools)
    if len(content) > MAX_RESPONSE_CHARS:
        return _too_long(content)
    parsed = _parse(content, 0, tool_format, tools)
    return replace(parsed, thought=_joined(thinking, parsed.thought))


def parse_native(
    calls: Sequence[NativeCall], tools: Tools = SWE_TOOLS, *, thinking: str = "", content: str = ""
) -> ParsedResponse:
    """Validate the calls that a family's own parser read; ``thinking`` and ``content`` are the thought."""
    thought = _joined(thinking, _thought(content[:MAX_RESPONSE_CHARS]))
    try:
        if not calls:
            raise CallError("no tool call was found in the response; every response must contain exactly one")
        if len(calls) > 1:
            raise CallError(_SEVERAL)
        call = calls[0]
        if call.error:
            raise CallError(call.error)
        valid = validate_call(call.name, checked_arguments(call.arguments), tools)
        return ParsedResponse(thought, valid, has_call=True)
    except CallError as error:
        return ParsedResponse(thought, None, _message(str(error)), has_call=bool(calls))


def read_native(text: str) -> tuple[str, tuple[NativeCall, ...]]:
    """Split a text in ChatML into the prose before its function calls, and the calls."""
    if len(text) > MAX_RESPONSE_CHARS:
        return text, ()
    places = READERS["native"](text, 0, {})
    first = _first_call(places)
    if first is None or (isinstance(first, BrokenCall) and first.mention):
        return text, ()
    whole = [first, *(place for place in places if isinstance(place, FoundCall))]
    calls = (
        NativeCall(name=place.name, arguments=place.arguments, error=place.error)
        if isinstance(place, FoundCall)
        else NativeCall(name="", arguments={}, error=place.error)
        for place in whole
    )
    return text[: first.start], tuple(calls)


def unclosed_thinking(text: str) -> ParsedResponse:
    """Return the error of a response whose thinking never ends."""
    return ParsedResponse(_thought(text), None, f"the thinking block was not closed with {THINK_END}")


def _parse(text: str, body: int, tool_format: ToolFormat, tools: Tools) -> ParsedResponse:
    places = READERS[tool_format](text, body, tools)
    first = _first_call(places)
    if first is None:
        error = (
            "no tool call was found in the response; every response must contain exactly one, "
            f"written as {_EXAMPLES[tool_format]}"
        )
        return ParsedResponse(_thought(text), None, error)
    thought = _thought(text[: first.start])
    has_call = isinstance(first, FoundCall) or not first.mention
    try:
        if isinstance(first, BrokenCall) or first.error:
            raise CallError(first.error)
        if any(isinstance(place, FoundCall) for place in places):
            raise CallError(_SEVERAL)
        return ParsedResponse(thought, validate_call(first.name, first.arguments, tools), has_call=True)
    except CallError as error:
        return ParsedResponse(thought, None, _message(str(error)), has_call=has_call)


def _first_call(places: Iterable[FoundCall | BrokenCall]) -> FoundCall | BrokenCall | None:
    """Return the first place that is more than a mention, else the first mention."""
    mention = None
    for place in places:
        if isinstance(place, FoundCall) or not place.mention:
            return place
        mention = mention or place
    return mention


def thinking_end(
    text: str, tool_format: ToolFormat, tools: Tools, thinking_open: bool | None = None
) -> int | None:
    """Return the offset at which a response's answer begins; None while its thinking block is open.

    Args:
        thinking_open: as in ``parse``.
    """
    end = text.find(THINK_END)
    if thinking_open or text.lstrip().startswith(THINK_START):
        return None if end < 0 else end + len(THINK_END)
    if end < 0 or thinking_open is False:
        return 0
    for place in READERS[tool_format](text, 0, tools):
        if place.start > end:
            break
        if isinstance(place, FoundCall) and end < place.end:
            # The marker is part of a value, unless another call begins between it and the call's end.
            inner = next(READERS[tool_format](text[: place.end], end, tools), None)
            if inner is None:
                return 0
    return end + len(THINK_END)


def _thought(text: str) -> str:
    plain = text.replace(THINK_START, "", 1).replace(THINK_END, "", 1).rstrip()
    return _WRAPPER.sub("", plain).strip()


def _joined(thinking: str, prose: str) -> str:
    return "\n\n".join(part for part in (thinking.strip(), prose) if part)


def _too_long(text: str) -> ParsedResponse:
    message = f"the response is longer than {MAX_RESPONSE_CHARS} characters and was not read"
    return ParsedResponse(_thought(text[:MAX_RESPONSE_CHARS]), None, message)


def _message(error: str) -> str:
    text = printable(error[: MAX_MESSAGE_CHARS + 1])
    return text if len(text) <= MAX_MESSAGE_CHARS else f"{text[:MAX_MESSAGE_CHARS]}..."
