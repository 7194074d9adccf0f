"""Bounded literals: values that can be written as Python source and read back without running code.

Limits of the calls in which they are arguments lie here as well.

This file also runs in sandboxes, beside ``call_recorder``: it needs the standard library alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

MAX_CHARS, MAX_VALUES, MAX_DEPTH, MAX_BITS = 3_000, 200, 5, 128
"""Limits of one literal: length of its text, number of values in it, nesting, bits of an integer."""


MAX_STEPS = 8
"""Limit of the steps of one call, see ``call_recorder``."""
OPERATORS = frozenset({
    "__call__", "__getitem__", "__setitem__", "__delitem__", "__contains__", "__len__", "__iter__",
    "__bool__", "__str__", "__repr__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__",
    "__add__", "__sub__", "__mul__", "__truediv__", "__floordiv__", "__mod__", "__and__", "__or__", "__xor__",
})  # fmt: skip
"""Special methods that count as public."""


class NotLiteralError(ValueError):
    """The value has no literal within the limits."""


def render(value: Any) -> str:
    """Return ASCII source of a value, the same for equal sets.

    Only values of exactly the builtin types count: a subclass could have any representation.

    Raises:
        NotLiteralError: the value, or a part of it, is no literal or exceeds the limits.
    """
    budget = [MAX_VALUES, MAX_CHARS]
    text = _render(value, budget, 0)
    if len(text) > MAX_CHARS:
        raise NotLiteralError("too long")
    return text


def has_floats(value: Any) -> bool:
    """Return whether a literal is a float or contains one."""
    if isinstance(value, dict):
        return any(has_floats(part) for pair in value.items() for part in pair)
    if isinstance(value, list | tuple | set):
        return any(map(has_floats, value))
    return isinstance(value, float)


def _render(value: Any, budget: list[int], depth: int) -> str:
    budget[0] -= 1
    if budget[0] < 0 or depth > MAX_DEPTH:
        raise NotLiteralError("too many values, or nested too deeply")
    writer = _WRITERS.get(type(value))
    if writer is None:
        raise NotLiteralError("not a value of a builtin type")
    text = writer(value, budget, depth)
    budget[1] -= len(text) if depth and type(value) in (str, bytes) else 0
    if budget[1] < 0:
        raise NotLiteralError("too long")
    return text


def _scalar(value: Any, _budget: list[int], _depth: int) -> str:
    return repr(value)


def _integer(value: int, _budget: list[int], _depth: int) -> str:
    if value.bit_length() > MAX_BITS:
        raise NotLiteralError("too large an integer")
    return repr(value)


def _number(value: float, _budget: list[int], _depth: int) -> str:
    if not math.isfinite(value):
        raise NotLiteralError("infinity and NaN have no literal")
    return repr(value)


def _text(value: str | bytes, _budget: list[int], _depth: int) -> str:
    if len(value) > MAX_CHARS:
        raise NotLiteralError("too long")
    return ascii(value)


def _items(value: Any, budget: list[int], depth: int) -> list[str]:
    if len(value) > MAX_VALUES:
        raise NotLiteralError("too many values")
    return [_render(item, budget, depth + 1) for item in value]


def _list(value: list[Any], budget: list[int], depth: int) -> str:
    return f"[{', '.join(_items(value, budget, depth))}]"


def _tuple(value: tuple[Any, ...], budget: list[int], depth: int) -> str:
    items = _items(value, budget, depth)
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"


def _set(value: set[Any], budget: list[int], depth: int) -> str:
    items = sorted(_items(value, budget, depth))
    return f"{{{', '.join(items)}}}" if items else "set()"


def _dict(value: dict[Any, Any], budget: list[int], depth: int) -> str:
    keys, values = _items(value, budget, depth), _items(value.values(), budget, depth)
    return f"{{{', '.join(f'{key}: {item}' for key, item in zip(keys, values))}}}"  # noqa: B905  Python 3.8


_WRITERS: dict[type, Callable[[Any, list[int], int], str]] = {
    type(None): _scalar, bool: _scalar, int: _integer, float: _number, str: _text, bytes: _text,
    list: _list, tuple: _tuple, set: _set, dict: _dict,
}  # fmt: skip
