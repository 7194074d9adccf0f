"""Values of constant expressions in a test file, and certain differences between two values."""

from __future__ import annotations

import ast
import builtins
import importlib
import math
import operator
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any

_MAX_SIZE = 10_000
_MAX_EXPONENT = 64
_NO_VALUE = (TypeError, ArithmeticError, LookupError, AttributeError, RecursionError, MemoryError)
_MIN_CHANGE = 1e-3
_BUILTINS = frozenset({
    "list", "tuple", "set", "frozenset", "dict", "range", "len", "sorted", "str", "bytes", "int", "float",
    "complex", "bool", "abs", "max", "min", "sum", "bytearray",
})  # fmt: skip
_LIBRARY = {
    "datetime": ("date", "datetime", "time", "timedelta", "timezone"),
    "decimal": ("Decimal",),
    "fractions": ("Fraction",),
    "collections": ("OrderedDict", "deque", "Counter"),
    "textwrap": ("dedent",),
    "uuid": ("UUID",),
    "pathlib": ("Path", "PurePath", "PurePosixPath"),
}
"""Modules and names in them that may be called; calls with constants have no effect."""
_SIZED = (range, bytes, bytearray)
_METHODS = frozenset({
    "upper", "lower", "title", "capitalize", "strip", "lstrip", "rstrip", "split", "rsplit", "splitlines",
    "join", "encode", "decode", "replace",
})  # fmt: skip
"""Methods of strings and bytes that may be called."""
_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow, ast.BitOr: operator.or_,
}  # fmt: skip
_UNARY: Mapping[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Invert: operator.invert, ast.Not: operator.not_,
}  # fmt: skip


class Constants:
    """Evaluator of the constant expressions of a module.

    Literals, operators, and calls of well-known functions that no other name of the module hides.

    Args:
        tree: the module.

    Attributes:
        bound: how often each name is bound in the module, in any scope.
    """

    def __init__(self, tree: ast.Module) -> None:
        self.bound = bound = _bindings(tree)
        self._names: dict[str, Any] = {
            name: getattr(builtins, name) for name in _BUILTINS if name not in bound and "*" not in bound
        }
        for node in tree.body:
            match node:
                case ast.ImportFrom(module=str(module), level=0) if module in _LIBRARY:
                    for alias in node.names:
                        name = alias.asname or alias.name
                        if alias.name in _LIBRARY[module] and bound[name] == 1:
                            self._names[name] = getattr(importlib.import_module(module), alias.name)
                case ast.Import():
                    for alias in node.names:
                        name = alias.asname or alias.name
                        if alias.name in _LIBRARY and bound[name] == 1:
                            self._names[name] = importlib.import_module(alias.name)

    def value(self, node: ast.expr) -> Any:
        """Return the value of an expression.

        Raises:
            ValueError: it is not constant, too large, or its evaluation fails.
        """
        try:
            return _bounded(self._value(node))
        except (
            TypeError,
            ArithmeticError,
            LookupError,
            AttributeError,
            RecursionError,
            MemoryError,
        ) as error:
            raise ValueError(f"no constant: {error}") from error

    def is_builtin(self, node: ast.expr, name: str) -> bool:
        """Return whether an expression is the name of that built-in function."""
        return isinstance(node, ast.Name) and node.id == name and name in self._names

    def _value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.List(elts=elements):
                return [self._value(element) for element in elements]
            case ast.Tuple(elts=elements):
                return tuple(self._value(element) for element in elements)
            case ast.Set(elts=elements):
                return {self._value(element) for element in elements}
            case ast.Dict(keys=keys, values=values) if None not in keys:
                return {
                    self._value(key): self._value(value)
                    for key, value in zip(keys, values, strict=True)
                    if key is not None
                }
            case ast.UnaryOp(op=op, operand=operand):
                return _UNARY[type(op)](self._value(operand))
            case ast.BinOp(left=left, op=op, right=right):
                return _computed(op, self._value(left), self._value(right))
            case ast.Call(func=function, args=args, keywords=keywords):
                return self._called(function, args, keywords)
            case ast.Attribute(value=owner, attr="utc") if self._callable(owner) is timezone:
                return UTC
        raise ValueError(f"not a constant: {type(node).__name__}")

    def _called(self, function: ast.expr, args: Sequence[ast.expr], keywords: Sequence[ast.keyword]) -> Any:
        called = self._callable(function)
        arguments = [self._value(argument) for argument in args]
        if called in _SIZED and any(isinstance(one, int) and abs(one) > _MAX_SIZE for one in arguments):
            raise ValueError("too large")
        named = {}
        for keyword in keywords:
            if keyword.arg is None:
                raise ValueError("not a constant: **")
            named[keyword.arg] = self._value(keyword.value)
        return _bounded(called(*arguments, **named))

    def _callable(self, function: ast.expr) -> Any:
        match function:
            case ast.Name(id=name):
                return self._names[name]
            case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name in self._names:
                module = self._names[name]
                if attribute not in _LIBRARY.get(getattr(module, "__name__", ""), ()):
                    raise ValueError(f"not a known function: {name}.{attribute}")
                return getattr(module, attribute)
            case ast.Attribute(value=owner, attr=attribute) if attribute in _METHODS:
                value = self._value(owner)
                if isinstance(value, str | bytes):
                    return getattr(value, attribute)
        raise ValueError("not a known function")


def _bindings(tree: ast.Module) -> Counter[str]:
    """Return how often each name is bound in a module, in any scope."""
    found: Counter[str] = Counter()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name):
                found[name] += 1
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found[name] += 1
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                found.update((alias.asname or alias.name).partition(".")[0] for alias in aliases)
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                found[name] += 1
    return found


def _computed(op: ast.operator, left: Any, right: Any) -> Any:
    if isinstance(op, ast.Pow) and not (abs(left) <= _MAX_SIZE and abs(right) <= _MAX_EXPONENT):
        raise ValueError("too large")
    if isinstance(op, ast.Mod) and isinstance(left, str | bytes):
        raise ValueError("a format")
    if isinstance(op, ast.Mult) and any(hasattr(one, "__len__") for one in (left, right)):
        size = math.prod(len(one) if hasattr(one, "__len__") else int(one) for one in (left, right))
        if size > _MAX_SIZE:
            raise ValueError("too large")
    return _bounded(_BINARY[type(op)](left, right))


def _bounded(value: Any) -> Any:
    if hasattr(value, "__len__") and len(value) > _MAX_SIZE:
        raise ValueError("too large")
    return value


def certainly_differ(old: Any, new: Any) -> bool:
    """Return whether no value equals both, also where comparisons ignore case, white space or rounding."""
    if type(old) is not type(new):
        return False
    match old:
        case bool() | int():
            return bool(old != new)
        case float() | complex() | Decimal() | Fraction():
            return _are_far_apart(old, new)
        case str() | bytes():
            return bool(_folded(old) != _folded(new))
        case Mapping():
            return old.keys() == new.keys() and any(certainly_differ(old[key], new[key]) for key in old)
        case list() | tuple() | deque():
            return len(old) == len(new) and any(map(certainly_differ, old, new))
        case set() | frozenset():
            gone, come = old - new, new - old
            return len(old) == len(new) and any(all(certainly_differ(one, it) for it in come) for one in gone)
    return bool(old != new)


def _are_far_apart(old: Any, new: Any) -> bool:
    return bool(abs(old - new) > _MIN_CHANGE * max(1.0, float(abs(old))))


def _folded(text: str | bytes) -> str:
    shown = text if isinstance(text, str) else text.decode("latin-1")
    return "".join(shown.casefold().split())
