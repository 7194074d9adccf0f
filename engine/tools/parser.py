"""From a response's text to one validated tool call; the inverse is ``engine.tools.rendering``.

Values are lossless. In XML exactly one newline after ``<parameter=K>`` and one before
``</parameter>`` are layout when both are there; nothing else is ever stripped. A parameter ends at
the first ``</parameter>`` that another parameter or the function's end follows, so values may hold
stray tags. Training, evaluation and the warm start all read responses here.
To add a format: a ``_find_…`` function and an entry in ``_FORMATS``.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from engine.tools.base import printable
from engine.tools.schemas import SWE_TOOLS, CallError, Tools, ToolSchema, validate_call
from engine.types import ToolCall

ToolFormat = Literal["xml", "function_calling", "words"]

THINK_START = "<think>"
THINK_END = "</think>"

# Nothing here is tried twice: repetitions are possessive, and those that may start anywhere are bounded.
_NAME = r"\s{0,20}+=([^>\n]{0,200}+)>"
_FUNCTION = re.compile(rf"<function{_NAME}")
_FUNCTION_END = re.compile(r"\s*+</function>")
_PARAMETER = re.compile(rf"\s*+<parameter{_NAME}")
PARAMETER_END = re.compile(rf"</parameter>(?=\s*+(?:<parameter{_NAME}|</function>))")
_JSON_CALL = re.compile(r"<tool_call>\s*+")
_JSON_CALL_END = re.compile(r"\s*+</tool_call>")
MAX_RESPONSE_CHARS = 4 << 20
"""A longer response is not read; the limit on tokens is usually met long before."""
MAX_MESSAGE_CHARS = 600
"""Messages quote the model's own text; a model that writes nonsense must not be shown all of it."""


@dataclass(frozen=True, slots=True)
class ParsedResponse:
    """A parsed response: its thought, and a call or the reason for a missing one."""

    thought: str
    """Everything before the call, thinking markers and outer whitespace removed."""
    call: ToolCall | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class _RawCall:
    start: int
    end: int
    name: str
    arguments: Mapping[str, object]


def parse(text: str, tool_format: ToolFormat, tools: Tools = SWE_TOOLS) -> ParsedResponse:
    """Read a response's text (turn markers removed).

    Calls inside the thinking block do not count. A response must hold exactly one call; anything
    else gives ``call=None`` and an ``error`` written for the model.
    """
    if len(text) > MAX_RESPONSE_CHARS:
        message = f"the response is longer than {MAX_RESPONSE_CHARS} characters and was not read"
        return ParsedResponse(_thought(text[:MAX_RESPONSE_CHARS]), None, message)
    body = _thinking_end(text)
    if body is None:
        return ParsedResponse(_thought(text), None, f"the thinking block was not closed with {THINK_END}")
    opener = _opener(tool_format, tools)
    try:
        found = _FORMATS[tool_format](text, body, tools)
        if found is None:
            raise CallError(
                "no tool call was found in the response; every response must contain exactly one, "
                f"written as {_EXAMPLES[tool_format]}"
            )
    except CallError as error:
        begun = opener.search(text, body)
        return ParsedResponse(_thought(text[: begun.start()] if begun else text), None, _message(error))
    thought = _thought(text[: found.start])
    try:
        if opener.search(text, found.end):
            raise CallError(
                "the response contains more than one tool call and none was run; "
                "every response must contain exactly one"
            )
        return ParsedResponse(thought, validate_call(found.name, found.arguments, tools))
    except CallError as error:
        return ParsedResponse(thought, None, _message(error))


def _message(error: CallError) -> str:
    text = printable(str(error)[: MAX_MESSAGE_CHARS + 1])
    return text if len(text) <= MAX_MESSAGE_CHARS else f"{text[:MAX_MESSAGE_CHARS]}..."


def _thinking_end(text: str) -> int | None:
    """Where the answer begins; None while a thinking block is open."""
    end = text.find(THINK_END)
    if text.lstrip().startswith(THINK_START):
        return None if end < 0 else end + len(THINK_END)
    opener = min((m.start() for p in _OPENERS.values() if (m := p.search(text))), default=len(text))
    return end + len(THINK_END) if 0 <= end < opener else 0


def _thought(text: str) -> str:
    return text.replace(THINK_START, "", 1).replace(THINK_END, "", 1).strip()


def _find_xml(text: str, position: int, _tools: Tools) -> _RawCall | None:
    opener = _FUNCTION.search(text, position)
    if opener is None:
        return None
    arguments: dict[str, object] = {}
    function, cursor = opener[1].strip(), opener.end()
    while not (closing := _FUNCTION_END.match(text, cursor)):
        parameter = _PARAMETER.match(text, cursor)
        if parameter is None:
            raise CallError(
                f"the call of '{function}' is malformed: after the function's name only "
                "<parameter=NAME>VALUE</parameter> and the closing </function> may follow"
            )
        name = parameter[1].strip()
        ending = PARAMETER_END.search(text, parameter.end())
        if ending is None:
            raise CallError(
                f"the call of '{function}' is cut off: parameter '{name}' or the function is not closed"
            )
        if name in arguments:
            raise CallError(f"the call of '{function}' gives parameter '{name}' twice")
        arguments[name] = _without_layout(text[parameter.end() : ending.start()])
        cursor = ending.end()
    return _RawCall(opener.start(), closing.end(), function, arguments)


def _without_layout(value: str) -> str:
    if len(value) >= 2 and value[0] == "\n" and value[-1] == "\n":
        return value[1:-1]
    return value


def _find_json(text: str, position: int, _tools: Tools) -> _RawCall | None:
    opener = _JSON_CALL.search(text, position)
    if opener is None:
        return None
    try:
        data, end = _DECODER.raw_decode(text, opener.end())
    except (ValueError, RecursionError) as error:
        raise CallError(f"the tool call is not valid JSON: {error}") from None
    closing = _JSON_CALL_END.match(text, end)
    if closing is None:
        raise CallError("the tool call is not closed with </tool_call> right after its JSON object")
    if (
        not isinstance(data, dict)
        or not isinstance(data.get("name"), str)
        or set(data) - {"name", "arguments"}
    ):
        raise CallError('the tool call must be an object {"name": ..., "arguments": {...}}')
    arguments = data.get("arguments", {})
    if not isinstance(arguments, dict):
        raise CallError("the tool call's 'arguments' must be an object")
    return _RawCall(opener.start(), closing.end(), data["name"], arguments)


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise CallError("an object gives a key twice")
    return found


def _no_number(word: str) -> object:
    raise CallError(f"{word} is not JSON")


_DECODER = json.JSONDecoder(strict=False, object_pairs_hook=_object, parse_constant=_no_number)


def _find_words(text: str, position: int, tools: Tools) -> _RawCall | None:
    found = _opener("words", tools).search(text, position)
    if found is None:
        return None
    name, *values = found[0].split()
    arguments = {p.name: value for p, value in zip(tools[name].parameters, values, strict=True)}
    return _RawCall(found.start(), found.end(), name, arguments)


def _opener(tool_format: ToolFormat, tools: Tools) -> re.Pattern[str]:
    """Where a call begins."""
    return _words_pattern(tuple(tools.values())) if tool_format == "words" else _OPENERS[tool_format]


@functools.cache
def _words_pattern(tools: tuple[ToolSchema, ...]) -> re.Pattern[str]:
    """Return the pattern of any whole call in words."""
    calls = [
        r"\s+".join([tool.name, *(f"(?:{'|'.join(p.choices)})" for p in tool.parameters)]) for tool in tools
    ]
    return re.compile(rf"\b(?:{'|'.join(calls)})\b")


_FORMATS: Mapping[ToolFormat, Callable[[str, int, Tools], _RawCall | None]] = {
    "xml": _find_xml,
    "function_calling": _find_json,
    "words": _find_words,
}
_OPENERS: Mapping[ToolFormat, re.Pattern[str]] = {"xml": _FUNCTION, "function_calling": _JSON_CALL}
_EXAMPLES: Mapping[ToolFormat, str] = {
    "xml": "<function=NAME>, one <parameter=KEY>VALUE</parameter> per argument, </function>",
    "function_calling": '<tool_call>{"name": NAME, "arguments": {...}}</tool_call>',
    "words": "NAME VALUE",
}
