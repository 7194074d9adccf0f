"""Calls of a project's functions and methods, recorded and with nearby arguments, and their results."""

from __future__ import annotations

import hashlib
import json
import keyword
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from itertools import islice, zip_longest
from typing import Any, Literal, get_args

from engine.grading.hardening.literals import MAX_STEPS, OPERATORS, NotLiteralError, render
from engine.python_syntax import python_literal

_MAX_RECORDED, _MAX_CALLS, _NEARBY_OF_CALL, _VALUES_OF_SLOT = 80, 400, 24, 8
"""Limits of recorded calls, of all calls, of those near a recorded one, and of values from other calls."""
_NOTHING = object()
_NAME = re.compile(r"[A-Za-z]\w{0,99}", re.ASCII)
_SHADOWS = frozenset({"Expected", "list", "pytest", "repr", "set", "value"})
"""Names that generated tests use: an imported function must not replace them."""
_MODULE = re.compile(rf"{_NAME.pattern}(?:\.{_NAME.pattern}){{0,9}}", re.ASCII)


Form = Literal["value", "items", "repr", "attributes", "raises"]
"""Kind of a result, see ``call_repeater``."""


@dataclass(frozen=True, slots=True)
class Step:
    """Call of a name of a module, or of the object that an earlier step returned."""

    name: str
    """Dotted for a method of a class."""
    arguments: str
    """Source of the tuple of positional arguments; empty if an attribute is read."""
    keywords: str
    """Source of the dictionary of keyword arguments."""
    returns: bool = True
    """Whether the object of the later steps is the result; else it stays what it is."""


@dataclass(frozen=True, slots=True)
class Call:
    """Steps of which the last has a result.

    ``nearby``: whether arguments were varied; the recorded ones are as a test has them.
    """

    module: str
    steps: tuple[Step, ...]
    nearby: bool = False

    @property
    def name(self) -> str:
        """Return the name that the last step calls."""
        return self.steps[-1].name

    @property
    def key(self) -> str:
        """Return 10 hex digits over the call."""
        content = repr((self.module, [astuple(step) for step in self.steps]))
        return hashlib.sha256(content.encode()).hexdigest()[:10]


_Arguments = tuple[tuple[Any, ...], dict[str, Any]]
_Recorded = tuple[Call, list[_Arguments]]
"""A call with the positional and keyword arguments of each step."""
_Values = dict[tuple[str, str, str], dict[int | str, dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Observation:
    """Result of a call in the solved task."""

    call: Call
    value: str
    """Source of the result, as ``form`` says."""
    form: Form = "value"
    of_object: bool = False
    """Whether the object of the last step is described instead of its result, None."""


def parse_calls(data: bytes) -> list[Call]:
    """Return the recorded calls, then nearby ones; call it in an isolated process, the data is hostile.

    Lines that are no call within the limits are left out.
    """
    recorded: dict[str, _Recorded] = {}
    for line in data.splitlines():
        try:
            item = json.loads(line)
            call, arguments = _call(item["module"], item["steps"])
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
        recorded.setdefault(call.key, (call, arguments))
        if len(recorded) >= _MAX_RECORDED:
            break
    calls = {key: call for key, (call, _) in recorded.items()}
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
            number, form, value = item["number"], item["form"], python_literal(item["value"])
            if type(number) is int and 0 <= number < len(calls) and _is_result(form, value):
                of_object = item["of_object"] is True and len(calls[number].steps) > 1
                found.setdefault(number, Observation(calls[number], render(value), form, of_object))
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
    return [found[number] for number in sorted(found)]


def _is_result(form: object, value: object) -> bool:
    """Return whether a value is one of a form that tests can name."""
    if form == "raises":
        module, _, name = value.partition(":") if type(value) is str else ("", "", "")
        return bool(_MODULE.fullmatch(module)) and all(map(_is_name, [*module.split("."), name]))
    if form == "attributes":
        return type(value) is dict and bool(value) and all(map(_is_name, value))
    return form in get_args(Form) and (form != "repr" or type(value) is str)


def _call(module: object, steps: object) -> tuple[Call, list[_Arguments]]:
    """Return a call and its arguments. Raises ValueError if a part of it is not as the recorder writes it."""
    if type(module) is not str or type(steps) is not list or not 0 < len(steps) <= MAX_STEPS:
        raise ValueError("no steps")
    if not (_MODULE.fullmatch(module) and all(map(_is_name, module.split(".")))):
        raise ValueError("no name of a module")
    made, given = [], []
    for position, (name, arguments, keywords, returns) in enumerate(steps):
        if type(name) is not str:
            raise ValueError("no name")
        parts = name.split(".") if position == 0 else [name]
        is_operator = position > 0 and name in OPERATORS
        if len(parts) > 2 or not (
            is_operator or all(_NAME.fullmatch(part) and _is_name(part) for part in parts)
        ):
            raise ValueError("no name")
        if position == 0 and parts[0] in _SHADOWS:
            raise ValueError("a name that tests use")
        positional = python_literal(arguments) if arguments else ()
        named = python_literal(keywords)
        made.append(_step(name, positional, named, returns=returns is True, reads=not arguments))
        given.append((positional, named))
    return Call(module, tuple(made)), given


def _step(name: str, positional: object, named: object, *, returns: bool, reads: bool = False) -> Step:
    if type(positional) is not tuple or type(named) is not dict or not all(map(_is_name, named)):
        raise ValueError("no arguments")
    return Step(name, "" if reads else render(positional), render(named), returns)


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
    """Return function → position or keyword → different recorded values."""
    values: _Values = {}
    for call, arguments in recorded:
        for step, (positional, named) in zip(call.steps, arguments, strict=True):
            slots = values.setdefault(_function(call, step), {})
            given: list[tuple[int | str, Any]] = [*enumerate(positional), *named.items()]
            for slot, value in given:
                slots.setdefault(slot, {}).setdefault(render(value), value)
    return values


def _function(call: Call, step: Step) -> tuple[str, str, str]:
    """Return what identifies the function of a step: its module, and the names by which it is reached."""
    return call.module, call.steps[0].name, "" if step is call.steps[0] else step.name


def _nearby_calls(call: Call, arguments: list[_Arguments], values: _Values) -> Iterator[Call]:
    """Yield calls in which one argument is a nearby value or that of another recorded call, in turn.

    Arguments of the last step go first.
    """
    varied = []
    for position in reversed(range(len(call.steps))):
        positional, named = arguments[position]
        for slot, recorded in values.get(_function(call, call.steps[position]), {}).items():
            if isinstance(slot, int) and slot >= len(positional):
                continue
            own = positional[slot] if isinstance(slot, int) else named.get(slot)
            pairs = zip_longest(
                nearby_values(own), islice(recorded.values(), _VALUES_OF_SLOT), fillvalue=_NOTHING
            )
            varied.append(
                [(position, slot, value) for pair in pairs for value in pair if value is not _NOTHING]
            )
    turns = (change for turn in zip_longest(*varied) for change in turn if change is not None)
    for position, slot, value in islice(turns, _NEARBY_OF_CALL):
        step, (positional, named) = call.steps[position], arguments[position]
        if isinstance(slot, int):
            positional = (*positional[:slot], value, *positional[slot + 1 :])
        else:
            named = {**named, slot: value}
        try:
            changed = _step(step.name, positional, named, returns=step.returns)
        except NotLiteralError:
            continue
        steps = (*call.steps[:position], changed, *call.steps[position + 1 :])
        yield Call(call.module, steps, nearby=True)


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
