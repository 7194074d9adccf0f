"""Lossless parsing of function calls in the formats of model families.

The text after the thinking is parsed here, because ``renderers`` strips the values of GLM's and Qwen3.5's
arguments, which changes indented code. To add a style: its sign in ``_SIGNS``, its reader in
``_READERS``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Literal

from engine.tools.formats import READERS, FoundCall
from engine.tools.parser import NativeCall, read_native

CallStyle = Literal["json", "xml", "keys", "llama", "mistral"]
LocatedCalls = Iterator[tuple[int, NativeCall]]
"""Calls in order, each with the position where it begins."""

_SIGNS: Mapping[str, CallStyle] = {
    "<arg_key>": "keys",
    "<function=": "xml",
    "[TOOL_CALLS]": "mistral",
    "<tool_call>": "json",
    '"parameters":': "llama",
}
_DECODER = json.JSONDecoder(strict=False)
_KEYS_NAME = re.compile(r"\s*([^<\s]{1,200})\s*")
_KEY = re.compile(r"\s*<arg_key>([^<]{1,200})</arg_key>\s*<arg_value>")
_VALUE_END = re.compile(r"</arg_value>(?=\s*(?:<arg_key>|</tool_call>))")
_KEYS_END = re.compile(r"\s*</tool_call>")
_WRAPPER = re.compile(r"(?:<tool_call>|<\|python_tag\|>)\s*\Z")
_LLAMA_OPENING = re.compile(r"\{\s*\"name\"\s*:")
_MISTRAL_NAME = re.compile(r"\s*([\w.-]{1,200})(?:\[CALL_ID\][^\[{]{1,80})?(?:\[ARGS\])?\s*(?=\{)")


def call_style(written: str) -> CallStyle | None:
    """Return the style of a call written by a family's template; None if unknown."""
    return next((style for sign, style in _SIGNS.items() if sign in written), None)


def read_calls(content: str, style: CallStyle) -> tuple[str, tuple[NativeCall, ...]]:
    """Return the text before the calls, and the calls."""
    located = list(_READERS[style](content))
    before = _WRAPPER.sub("", content[: located[0][0]]) if located else content
    return before, tuple(call for _, call in located)


def arguments_json(call: NativeCall) -> str:
    """Return a call's arguments as JSON text."""
    if isinstance(call.arguments, str):
        return call.arguments
    return json.dumps(dict(call.arguments), ensure_ascii=False)


def _broken(position: int, name: str, reason: str) -> tuple[int, NativeCall]:
    return position, NativeCall(name=name, arguments={}, error=reason)


def _read_xml(content: str) -> LocatedCalls:
    for match in READERS["xml"](content, 0, {}):
        if isinstance(match, FoundCall):
            yield match.start, NativeCall(name=match.name, arguments=match.arguments, error=match.error)
        elif not match.mention:
            yield _broken(match.start, "", match.error)


def _read_json(content: str) -> LocatedCalls:
    before, calls = read_native(content)
    return ((len(before), call) for call in calls)


def _read_keys(content: str) -> LocatedCalls:
    start = content.find("<tool_call>")
    while start >= 0:
        name = _KEYS_NAME.match(content, start + len("<tool_call>"))
        if name is None:
            yield _broken(start, "", "the tool call has no name")
            return
        cursor, arguments = name.end(), dict[str, object]()
        while key := _KEY.match(content, cursor):
            end = _VALUE_END.search(content, key.end())
            if end is None:
                yield _broken(start, name[1], f"the call of '{name[1]}' is cut off in '{key[1].strip()}'")
                return
            arguments[key[1].strip()] = content[key.end() : end.start()]
            cursor = end.end()
        closing = _KEYS_END.match(content, cursor)
        if closing is None:
            yield _broken(start, name[1], f"the call of '{name[1]}' is not closed with </tool_call>")
            return
        yield start, NativeCall(name=name[1], arguments=arguments)
        start = content.find("<tool_call>", closing.end())


def _read_llama(content: str) -> LocatedCalls:
    if opening := _LLAMA_OPENING.search(content):
        yield _object_call(opening.start(), content[opening.start() :])


def _read_mistral(content: str) -> LocatedCalls:
    start = content.find("[TOOL_CALLS]")
    written = content[start + len("[TOOL_CALLS]") :]
    if start >= 0 and written.lstrip().startswith("["):
        yield from _object_list(start, written)
        return
    while start >= 0:
        name = _MISTRAL_NAME.match(content, start + len("[TOOL_CALLS]"))
        if name is None:
            yield _broken(start, "", "the tool call is broken: expected a name and an object of arguments")
            return
        try:
            arguments, cursor = _DECODER.raw_decode(content, name.end())
        except (ValueError, RecursionError) as error:
            yield _broken(start, name[1], f"the arguments of '{name[1]}' are not valid JSON: {error}")
            return
        yield start, NativeCall(name=name[1], arguments=arguments)
        start = content.find("[TOOL_CALLS]", cursor)


def _object_list(start: int, text: str) -> LocatedCalls:
    try:
        calls, _ = _DECODER.raw_decode(text.lstrip())
    except (ValueError, RecursionError) as error:
        yield _broken(start, "", f"the tool calls are not valid JSON: {error}")
        return
    for call in calls:
        yield _object_call(start, json.dumps(call))


def _object_call(start: int, text: str) -> tuple[int, NativeCall]:
    try:
        data, _ = _DECODER.raw_decode(text)
    except (ValueError, RecursionError) as error:
        return _broken(start, "", f"the tool call is not valid JSON: {error}")
    if isinstance(data, dict) and isinstance(data.get("name"), str):
        arguments = data.get("parameters", data.get("arguments", {}))
        if isinstance(arguments, dict | str):
            return start, NativeCall(name=data["name"], arguments=arguments)
    return _broken(start, "", 'the tool call must be an object with "name" and an object of arguments')


_READERS: Mapping[CallStyle, Callable[[str], LocatedCalls]] = {
    "json": _read_json,
    "xml": _read_xml,
    "keys": _read_keys,
    "llama": _read_llama,
    "mistral": _read_mistral,
}
