"""Calls of a project's functions with literal arguments: recorded ones, and ones with nearby arguments."""

from __future__ import annotations

import hashlib
import json
import keyword
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from typing import Any

from engine.grading.hardening.literals import NotLiteralError, render
from engine.python_syntax import python_literal

_MAX_RECORDED, _MAX_CALLS, _NEARBY_OF_CALL, _VALUES_OF_SLOT = 80, 400, 24, 8
"""Limits of recorded calls, of all calls, of those near a recorded one, and of values from other calls."""
_NOTHING = object()
_NAME = re.compile(r"[A-Za-z]\w{0,99}", re.ASCII)
_SHADOWS = frozenset({"list", "pytest", "set"})
"""Names that generated tests use: an imported function must not replace them."""
_MODULE = re.compile(rf"{_NAME.pattern}(?:\.{_NAME.pattern}){{0,9}}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Call:
    """Call of a module's function.

    ``nearby``: whether its arguments were varied; the recorded ones are as a test has them.
    """

    module: str
    function: str
    arguments: str
    """Source of the tuple of positional arguments."""
    keywords: str
    """Source of the dictionary of keyword arguments."""
    nearby: bool = False

    @property
    def key(self) -> str:
        """Return 10 hex digits over the call."""
        content = repr((self.module, self.function, self.arguments, self.keywords))
        return hashlib.sha256(content.encode()).hexdigest()[:10]


_Recorded = tuple[Call, tuple[Any, ...], dict[str, Any]]
"""A call with its positional and keyword arguments."""
_Values = dict[tuple[str, str], dict[int | str, dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Observation:
    """Result of a call in the solved task."""

    call: Call
    value: str
    """Source of the result; of an iterator, the list of its items."""
    iterator: bool


def parse_calls(data: bytes) -> list[Call]:
    """Return the recorded calls, then nearby ones; call it in an isolated process, the data is hostile.

    Lines that are no call within the limits are left out.
    """
    recorded: dict[str, _Recorded] = {}
    for line in data.splitlines():
        try:
            item = json.loads(line)
            arguments, keywords = python_literal(item["arguments"]), python_literal(item["keywords"])
            call = _call(str(item["module"]), str(item["function"]), arguments, keywords)
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
        recorded.setdefault(call.key, (call, arguments, keywords))
        if len(recorded) >= _MAX_RECORDED:
            break
    calls = {key: call for key, (call, _, _) in recorded.items()}
    values = _values_of_slots(recorded.values())
    rounds = zip_longest(*(_nearby_calls(*item, values) for item in recorded.values()))
    for call in (call for turn in rounds for call in turn if call is not None):
        if len(calls) >= _MAX_CALLS:
            break
        calls.setdefault(call.key, call)
    return list(calls.values())


def parse_results(data: bytes, calls: Sequence[Call]) -> list[Observation]:
    """Return the results of calls; call it in an isolated process, the data is hostile."""
    found: dict[int, Observation] = {}
    for line in data.splitlines():
        try:
            item = json.loads(line)
            number, iterator = item["number"], item["iterator"] is True
            value = render(python_literal(item["value"]))
            if type(number) is int and 0 <= number < len(calls):
                found.setdefault(number, Observation(calls[number], value, iterator))
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
    return [found[number] for number in sorted(found)]


def _call(module: str, function: str, arguments: object, keywords: object, *, nearby: bool = False) -> Call:
    """Return a call. Raises ValueError if a name is none, or an argument no literal within the limits."""
    if type(arguments) is not tuple or type(keywords) is not dict:
        raise ValueError("no arguments")
    names = [*module.split("."), function, *keywords]
    if not (_MODULE.fullmatch(module) and _NAME.fullmatch(function)) or function in _SHADOWS:
        raise ValueError("no name of a function")
    if not all(map(_is_name, names)):
        raise ValueError("no name")
    return Call(module, function, render(arguments), render(keywords), nearby)


def _is_name(name: object) -> bool:
    """Return whether source can have the name. Python normalizes names that are not ASCII."""
    return (
        type(name) is str
        and name.isascii()
        and name.isidentifier()
        and not keyword.iskeyword(name)
        and name != "__debug__"
    )


def _values_of_slots(recorded: Iterable[_Recorded]) -> _Values:
    """Return the function's module and name → position or keyword → different recorded values."""
    values: _Values = {}
    for call, arguments, keywords in recorded:
        slots = values.setdefault((call.module, call.function), {})
        given: list[tuple[int | str, Any]] = [*enumerate(arguments), *keywords.items()]
        for slot, value in given:
            slots.setdefault(slot, {}).setdefault(render(value), value)
    return values


def _nearby_calls(
    call: Call, arguments: tuple[Any, ...], keywords: dict[str, Any], values: _Values
) -> Iterator[Call]:
    """Yield calls in which one argument is a nearby value or that of another recorded call, in turn."""
    slots = values[call.module, call.function]
    varied = []
    for slot, recorded in slots.items():
        if isinstance(slot, int) and slot >= len(arguments):
            continue
        own = arguments[slot] if isinstance(slot, int) else keywords.get(slot)
        pairs = zip_longest(
            nearby_values(own), islice(recorded.values(), _VALUES_OF_SLOT), fillvalue=_NOTHING
        )
        varied.append([(slot, value) for pair in pairs for value in pair if value is not _NOTHING])
    turns = (change for turn in zip_longest(*varied) for change in turn if change is not None)
    for slot, value in islice(turns, _NEARBY_OF_CALL):
        positional, named = arguments, keywords
        if isinstance(slot, int):
            positional = (*arguments[:slot], value, *arguments[slot + 1 :])
        else:
            named = {**keywords, slot: value}
        try:
            yield _call(call.module, call.function, positional, named, nearby=True)
        except NotLiteralError:
            continue


def nearby_values(value: Any) -> list[Any]:
    """Return values of the same type near a literal; none for None."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        return [value + 1, value - 1, type(value)(0), -value, value * 10]
    if isinstance(value, bytes):
        return [value * 2, value[: len(value) // 2], b"", value[::-1]]
    if isinstance(value, str):
        marks = ["'", '"', "\\", "\n", " "]
        marked = [value + mark for mark in marks]
        plain = [value * 2, value[: len(value) // 2], "", value.upper(), value.lower()]
        return [near for pair in zip(marked, plain, strict=True) for near in pair]
    if isinstance(value, list | tuple):
        inner = [
            type(value)([*value[:index], other, *value[index + 1 :]])
            for index in range(min(2, len(value)))
            for other in nearby_values(value[index])[:2]
        ]
        return [value * 2, value[:-1], type(value)(), value[::-1], *inner]
    if isinstance(value, dict):
        return [{}, dict(list(value.items())[:-1])]
    return [set()] if isinstance(value, set) else []
