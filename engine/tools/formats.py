"""Search for tool calls in a text, one reader per format; ``engine.tools.parser`` validates the results.

A reader yields the places where a call begins, in order: a complete call, or the reason why it is broken. The
search continues where the last place ended, so no text is read twice.
To add a format: a reader and an entry in ``READERS``, its example in ``engine.tools.parser``, its rendering
in ``engine.tools.rendering``.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from engine.tools.schemas import CallError, Tools, ToolSchema

ToolFormat = Literal["xml", "native", "words"]

_MAX_PLACES = 100
"""Largest number of places that are read; a text with more of them is nonsense."""

# No backtracking: repetitions are possessive, and those that may start anywhere are bounded.
_NAME = r"\s{0,20}+=([^<>\n]{0,200}+)>"
_FUNCTION = re.compile(rf"<function{_NAME}")
_FUNCTION_END = re.compile(r"\s*+</function>")
_PARAMETER = re.compile(rf"\s*+<parameter{_NAME}")
PARAMETER_END = re.compile(rf"</parameter>(?=\s*+(?:<parameter{_NAME}|</function>))")
_JSON_CALL = re.compile(r"<tool_call>\s*+")
_JSON_CALL_END = re.compile(r"\s*+</tool_call>")


@dataclass(frozen=True, slots=True)
class FoundCall:
    """A complete call in a text, not yet validated against its tool."""

    start: int
    end: int
    name: str
    arguments: Mapping[str, object]
    error: str = ""
    """Reason why the call cannot be executed, written for the model; empty when it can."""


@dataclass(frozen=True, slots=True)
class BrokenCall:
    """A place where an incomplete or malformed call begins."""

    start: int
    end: int
    """End of the part that was read."""
    error: str
    """Reason, written for the model."""
    mention: bool = False
    """Whether no call follows the opening tag, as where prose mentions the tag."""


Reader = Callable[[str, int, Tools], Iterator[FoundCall | BrokenCall]]


def _read_places(
    text: str,
    position: int,
    opening: re.Pattern[str],
    read: Callable[[str, re.Match[str]], FoundCall | BrokenCall],
) -> Iterator[FoundCall | BrokenCall]:
    for _ in range(_MAX_PLACES):
        opener = opening.search(text, position)
        if opener is None:
            return
        call = read(text, opener)
        yield call
        position = call.end


def read_xml(text: str, position: int, _tools: Tools) -> Iterator[FoundCall | BrokenCall]:
    """Return the calls written ``<function=NAME><parameter=KEY>VALUE</parameter></function>``."""
    return _read_places(text, position, _FUNCTION, _read_function)


def _read_function(text: str, opener: re.Match[str]) -> FoundCall | BrokenCall:
    arguments: dict[str, object] = {}
    repeated = ""
    start, function, cursor = opener.start(), opener[1].strip(), opener.end()
    while not (closing := _FUNCTION_END.match(text, cursor)):
        parameter = _PARAMETER.match(text, cursor)
        if parameter is None:
            error = (
                f"the call of '{function}' is malformed: after the function's name only "
                "<parameter=NAME>VALUE</parameter> and the closing </function> may follow"
            )
            return BrokenCall(start, cursor, error, mention=not _is_closed(text, cursor))
        name = parameter[1].strip()
        ending = PARAMETER_END.search(text, parameter.end())
        if ending is None:
            error = f"the call of '{function}' is cut off: parameter '{name}' or the function is not closed"
            return BrokenCall(start, len(text), error)
        if name in arguments:
            repeated = name
        arguments[name] = _without_layout(text[parameter.end() : ending.start()])
        cursor = ending.end()
    error = f"the call of '{function}' gives parameter '{repeated}' twice" if repeated else ""
    return FoundCall(start, closing.end(), function, arguments, error)


def _is_closed(text: str, position: int) -> bool:
    """Return whether a function is closed before the next one opens."""
    opener = _FUNCTION.search(text, position)
    return "</function>" in text[position : opener.start() if opener else len(text)]


def _without_layout(value: str) -> str:
    if len(value) >= 2 and value[0] == "\n" and value[-1] == "\n":
        return value[1:-1]
    return value


def read_json(text: str, position: int, _tools: Tools) -> Iterator[FoundCall | BrokenCall]:
    """Return the calls written ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``."""
    return _read_places(text, position, _JSON_CALL, _read_object)


def _read_object(text: str, opener: re.Match[str]) -> FoundCall | BrokenCall:
    start = opener.start()
    try:
        data, end = _DECODER.raw_decode(text, opener.end())
    except json.JSONDecodeError as error:
        mention = not text.startswith("{", opener.end())
        return BrokenCall(
            start, max(error.pos, opener.end()), f"the tool call is not valid JSON: {error}", mention
        )
    except (ValueError, RecursionError) as error:
        return BrokenCall(start, len(text), f"the tool call is not valid JSON: {error}")
    closing = _JSON_CALL_END.match(text, end)
    if closing is None:
        return BrokenCall(
            start, end, "the tool call is not closed with </tool_call> right after its JSON object"
        )
    try:
        name, arguments = _call_of(data)
    except CallError as error:
        return FoundCall(start, closing.end(), "", {}, str(error))
    return FoundCall(start, closing.end(), name, arguments)


def _call_of(data: object) -> tuple[str, Mapping[str, object]]:
    if (
        not isinstance(data, dict)
        or not isinstance(data.get("name"), str)
        or set(data) - {"name", "arguments"}
    ):
        raise CallError('the tool call must be an object {"name": ..., "arguments": {...}}')
    return data["name"], checked_arguments(data.get("arguments", {}))


def checked_arguments(arguments: object) -> Mapping[str, object]:
    """Return a call's arguments, given as an object, its JSON text or null. Raises CallError."""
    if isinstance(arguments, str):
        try:
            arguments = _DECODER.decode(arguments)
        except (ValueError, RecursionError) as error:
            raise CallError(f"the tool call's 'arguments' are not valid JSON: {error}") from None
    if arguments is None:
        return {}
    if not isinstance(arguments, dict):
        raise CallError("the tool call's 'arguments' must be an object")
    return arguments


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise CallError("an object gives a key twice")
    return members


def _no_number(word: str) -> object:
    raise CallError(f"{word} is not JSON")


_DECODER = json.JSONDecoder(strict=False, object_pairs_hook=_object, parse_constant=_no_number)


def read_words(text: str, position: int, tools: Tools) -> Iterator[FoundCall | BrokenCall]:
    """Yield the calls written as the tool's name and its arguments in order, ``move up``."""
    for match in _words_pattern(tuple(tools.values())).finditer(text, position):
        name, *values = match[0].split()
        arguments = {p.name: value for p, value in zip(tools[name].parameters, values, strict=True)}
        yield FoundCall(match.start(), match.end(), name, arguments)


@functools.cache
def _words_pattern(tools: tuple[ToolSchema, ...]) -> re.Pattern[str]:
    """Return the pattern of any complete call in words."""
    calls = [
        r"\s+".join([tool.name, *(f"(?:{'|'.join(p.choices)})" for p in tool.parameters)]) for tool in tools
    ]
    return re.compile(rf"\b(?:{'|'.join(calls)})\b")


_WRITTEN_CALL = re.compile(
    r"<tool_call>|<function\s{0,5}=|<invoke name=|\[TOOL_CALLS\]|<\|tool_call|<\|python_tag\|>|<arg_key>"
    r"|\"(?:name|function|tool|tool_name|action)\"\s{0,20}:\s{0,20}\"(?P<named>[\w.-]{1,64})\""
    r"|\b(?P<called>[\w.-]{1,64})\(\s{0,20}\w{1,40}\s{0,5}="
)
"""Beginnings of calls as model families write them, bare JSON and Python among them."""
_EXCERPT_CHARS = 100
_SEARCHED_CHARS = 20_000
"""Characters at either end of a response that are searched for a call."""


def written_call(text: str, names: Collection[str]) -> str:
    """Return the beginning of a probable call in any family's format; empty without one.

    Args:
        text: a response in which no valid call was found.
        names: names of the tools.
    """
    if len(text) > 2 * _SEARCHED_CHARS:
        text = f"{text[:_SEARCHED_CHARS]}\n{text[-_SEARCHED_CHARS:]}"
    for match in _WRITTEN_CALL.finditer(text):
        name = match["named"] or match["called"]
        if name is None or name in names:
            start = text.rfind("{", max(0, match.start() - _EXCERPT_CHARS // 2), match.start())
            start = start if match["named"] and start >= 0 else match.start()
            return " ".join(text[start : start + _EXCERPT_CHARS].split())
    return ""


READERS: Mapping[ToolFormat, Reader] = {"xml": read_xml, "native": read_json, "words": read_words}
