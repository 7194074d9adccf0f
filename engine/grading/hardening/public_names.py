"""Public names of a project's functions and classes, in the sandbox of a solved task.

Standard library only: it lies beside ``call_recorder`` as ``trainyard_names``.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Collection
from typing import Any


class PublicNames:
    """Shortest public names of the functions and classes in the imported modules of a project.

    Args:
        workdir: folder of the project, with a slash at its end.
        tests: paths of files whose names do not count.
    """

    def __init__(self, workdir: str, tests: Collection[str]) -> None:
        self._workdir, self._tests = workdir, tests
        self._num_modules = 0
        self.functions: dict[Any, tuple[str, str, Any]] = {}
        """Code of functions, or code and object of bound methods → module, name, function."""
        self.classes: dict[int, tuple[str, str, type]] = {}
        """Id of a class → module, name, class."""

    def update(self) -> None:
        """Find the names if modules were imported meanwhile."""
        if len(sys.modules) != self._num_modules:
            self._num_modules = len(sys.modules)
            self._find()

    def _find(self) -> None:
        """Find the names.

        Code of several functions, e.g. of a decorator's wrapper, is left out.
        """
        modules = [
            (name, module)
            for name, module in list(sys.modules.items())
            if self.has_module(module) and is_public(*name.split("."))
        ]
        self.functions, self.classes = {}, {}
        shared = set()
        for name, module in sorted(modules, key=lambda pair: (pair[0].count("."), pair[0])):
            for attribute, value in list(vars(module).items()):
                if not is_public(attribute):
                    continue
                functions = [(attribute, value)]
                if issubclass(type(value), type):
                    self.classes.setdefault(id(value), (name, attribute, value))
                    functions = _static_methods(attribute, value)
                for called, function in functions:
                    key, inner = _key(function)
                    if (
                        key is not None
                        and self.functions.setdefault(key, (name, called, inner))[2] is not inner
                    ):
                        shared.add(key)
        for key in shared:
            del self.functions[key]

    def has_module(self, module: object) -> bool:
        """Return whether a module is one of the project, and no test."""
        path = attribute(module, "__file__")
        return type(path) is str and path.startswith(self._workdir) and path not in self._tests


def attribute(value: object, name: str) -> object:
    """Return an attribute; None if there is none, or reading it fails."""
    try:
        return getattr(value, name, None)
    except Exception:  # a lazy object may do anything when it is read
        return None


def is_public(*names: str) -> bool:
    """Return whether no name is private, and none is one of tests."""
    return not any(name.startswith("_") or name in ("test", "tests", "conftest") for name in names)


def _static_methods(name: str, class_: type) -> list[tuple[str, Any]]:
    """Return the dotted names and functions of a class's public static methods."""
    return [
        (name + "." + inner, method.__func__)
        for inner, method in list(vars(class_).items())
        if type(method) is staticmethod and is_public(inner)
    ]


def _key(value: Any) -> tuple[Any, Any]:
    """Return what identifies frames of a function or bound method, and the function; else None twice."""
    is_bound = type(value) is types.MethodType
    function = value.__func__ if is_bound else value
    if type(function) is not types.FunctionType:
        function = attribute(function, "__wrapped__")
    if type(function) is not types.FunctionType:
        return None, None
    return (function.__code__, id(value.__self__)) if is_bound else function.__code__, function


def definition(class_: type, code: types.CodeType) -> tuple[Any, Any] | None:
    """Return the kind and the function of a class's attribute with some code; None if there is none.

    The kind is ``classmethod``, ``property`` or ``types.FunctionType``.
    """
    for base in class_.__mro__:
        if code.co_name in vars(base):
            value = vars(base)[code.co_name]
            kind: Any = classmethod if isinstance(value, classmethod) else types.FunctionType
            function = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
            if isinstance(value, property):
                kind, function = property, value.fget
            elif type(value).__name__ == "cached_property":
                kind, function = property, attribute(value, "func")
            if type(function) is not types.FunctionType:
                function = attribute(function, "__wrapped__")
            is_same = type(function) is types.FunctionType and function.__code__ is code
            return (kind, function) if is_same else None
    return None
