"""Calls of a project's functions and methods, recorded and with nearby arguments, and their results."""

from __future__ import annotations

import hashlib
import json
import keyword
import math
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from itertools import islice, zip_longest
from typing import Any, Literal, get_args

from engine.grading.hardening.literals import MAX_STEPS, OPERATORS, NotLiteralError, render
from engine.python_syntax import python_literal

_MAX_RECORDED, _MAX_CALLS, _NEARBY_OF_CALL, _PAIRS_OF_CALL, _VALUES_OF_SLOT = 120, 2_400, 60, 20, 12
"""Limits of recorded calls, of all calls, of those near a recorded one, of those with two changed arguments,
and of values of an argument in other calls and in the code."""
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
_Slot = int | str
"""Position or keyword of an argument."""
_Values = dict[tuple[str, str, str], dict[_Slot, dict[str, Any]]]
_Change = tuple[int, _Slot, Any]
"""Position of a step, and a new value of one of its arguments."""


@dataclass(frozen=True, slots=True)
class _Recorded:
    """A call with the positional and keyword arguments of each step.

    ``defaults``: name → value of the last step's other parameters.
    """

    call: Call
    arguments: list[_Arguments]
    defaults: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Observation:
    """Result of a call in the solved task."""

    call: Call
    value: str
    """Source of the result, as ``form`` says."""
    form: Form = "value"
    of_object: bool = False
    """Whether the object of the last step is described instead of its result, None."""


def parse_calls(data: bytes, constants: Sequence[Any] = ()) -> list[Call]:
    """Return the recorded calls, then nearby ones; call it in an isolated process, the data is hostile.

    Lines that are no call within the limits are left out.

    Args:
        data: lines that ``call_recorder`` wrote.
        constants: literals in the tested code.
    """
    recorded: dict[str, _Recorded] = {}
    for line in data.splitlines():
        try:
            item = json.loads(line)
            call, arguments = _call(item["module"], item["steps"])
            defaults = python_literal(item["defaults"])
            _step(call.name, (), defaults, returns=True)
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
        recorded.setdefault(call.key, _Recorded(call, arguments, defaults))
        if len(recorded) >= _MAX_RECORDED:
            break
    calls = {key: each.call for key, each in recorded.items()}
    values = _values_of_slots(recorded.values())
    rounds = zip_longest(*(_nearby_calls(each, values, constants) for each in recorded.values()))
    for call in (call for turn in rounds for call in turn if call is not None):
        if len(calls) >= _MAX_CALLS:
            break
        calls.setdefault(call.key, call)
    return list(calls.values())


def parse_results(data: bytes, calls: Sequence[Call]) -> list[Observation]:
    """Return the results of calls; call it in an isolated process, the data is hostile."""
    results = _parsed_results(data, calls)
    return [result for _, result in sorted(results.items()) if result is not None]


def compared_results(data: bytes, observations: Sequence[Observation]) -> tuple[list[int], list[int]]:
    """Return the positions of observations whose calls have another result, and of those with the same.

    Calls that were not repeated are in neither; floats that a generated test would accept are the same. The
    data is hostile, too.
    """
    results = _parsed_results(data, [observation.call for observation in observations])
    same = {number for number, result in results.items() if _agree(observations[number], result)}
    return sorted(results.keys() - same), sorted(same)


def _agree(expected: Observation, result: Observation | None) -> bool:
    if result is None or result == expected:
        return result is not None
    values = [python_literal(each.value) for each in (expected, result)]
    return all(isinstance(value, float) for value in values) and math.isclose(*values, rel_tol=1e-6)


def _parsed_results(data: bytes, calls: Sequence[Call]) -> dict[int, Observation | None]:
    """Return number of a call → its result; None if it has none that can be described."""
    results: dict[int, Observation | None] = {}
    for line in data.splitlines():
        try:
            item = json.loads(line)
            number = item["number"]
            if type(number) is not int or not 0 <= number < len(calls):
                continue
            if "form" not in item:
                results.setdefault(number, None)
                continue
            form, value = item["form"], python_literal(item["value"])
            if _is_result(form, value):
                of_object = item["of_object"] is True and len(calls[number].steps) > 1
                results.setdefault(number, Observation(calls[number], render(value), form, of_object))
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
    return results


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
    for each in recorded:
        for step, (positional, named) in zip(each.call.steps, each.arguments, strict=True):
            slots = values.setdefault(_function(each.call, step), {})
            given: list[tuple[_Slot, Any]] = [*enumerate(positional), *named.items()]
            for slot, value in given:
                slots.setdefault(slot, {}).setdefault(render(value), value)
        slots = values[_function(each.call, each.call.steps[-1])]
        for name in each.defaults:
            slots.setdefault(name, {})
    return values


def _function(call: Call, step: Step) -> tuple[str, str, str]:
    """Return what identifies the function of a step: its module, and the names by which it is reached."""
    return call.module, call.steps[0].name, "" if step is call.steps[0] else step.name


def _nearby_calls(recorded: _Recorded, values: _Values, constants: Sequence[Any]) -> Iterator[Call]:
    """Yield calls in which one argument has another value, then calls in which two have.

    Values are nearby ones, those of other recorded calls and those made of constants, in turn. Arguments of
    the last step go first.
    """
    varied = []
    for position in reversed(range(len(recorded.call.steps))):
        positional, named = recorded.arguments[position]
        if position == len(recorded.call.steps) - 1:
            named = {**recorded.defaults, **named}
        function = _function(recorded.call, recorded.call.steps[position])
        for slot, others in values.get(function, {}).items():
            if isinstance(slot, int) and slot >= len(positional):
                continue
            own = positional[slot] if isinstance(slot, int) else named.get(slot)
            sources = zip_longest(
                nearby_values(own),
                islice(others.values(), _VALUES_OF_SLOT),
                islice(_with_constants(own, constants), 2 * _VALUES_OF_SLOT),
                fillvalue=_NOTHING,
            )
            new = (value for source in sources for value in source if value is not _NOTHING)
            if changes := [(position, slot, value) for value in new]:
                varied.append(changes)
    turns = [change for turn in zip_longest(*varied) for change in turn if change is not None]
    for change in turns[:_NEARBY_OF_CALL]:
        yield from _changed(recorded, [change])
    if len(varied) > 1:
        draw = random.Random(recorded.call.key)
        for _ in range(_PAIRS_OF_CALL):
            yield from _changed(recorded, [draw.choice(changes) for changes in draw.sample(varied, 2)])


def _changed(recorded: _Recorded, changes: Sequence[_Change]) -> Iterator[Call]:
    """Yield a call with changed arguments; nothing if they exceed the limits of literals."""
    steps, arguments = list(recorded.call.steps), list(recorded.arguments)
    for position, slot, value in changes:
        positional, named = arguments[position]
        if isinstance(slot, int):
            positional = (*positional[:slot], value, *positional[slot + 1 :])
        else:
            named = {**named, slot: value}
        arguments[position] = positional, named
        try:
            steps[position] = _step(steps[position].name, positional, named, returns=steps[position].returns)
        except NotLiteralError:
            return
    yield Call(recorded.call.module, tuple(steps), nearby=True)


def _with_constants(value: Any, constants: Iterable[Any]) -> Iterator[Any]:
    """Yield values of the same type made of constants: themselves, numbers beside, texts around the value."""
    for constant in constants:
        if type(constant) is not type(value):
            continue
        yield constant
        if isinstance(value, int | float):
            yield from (constant + 1, constant - 1)
        else:
            yield from (value + constant, constant + value)


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
