"""Detect replaced helpers, with which tests check results. A plain script for Python ≥ 3.6.

Helpers are the functions and constants of test files and installed packages that a test names, those that
they name in turn (in installed packages within one file), and the methods of test classes. Each must match
its file: code as compiled from the file, defaults and constants as written. Only names that a file defines
once, without a decorator and unconditionally, are compared; modules of the project itself are not. Code that
tests and plugins of pytest put in place of helpers is trusted (``pytest_trust``). Nothing shows who changed a
constant, so changed constants are a separate kind of finding.
"""

import _imp
import ast
import os
import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from engine.testing.pytest_trust import Trust
else:
    from trainyard_trust import Trust

_MAX_BYTES = 2 << 20
"""Maximum size of the source text read in a session, bytes."""
_MAX_MODULES = 4
"""Maximum number of modules in a chain of attributes; ``numpy.testing`` has two."""
_REBINDS = {"exec", "globals", "locals", "setattr", "vars"}
"""Functions with which a module may define names."""
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_PLAIN = (*_FUNCTIONS, ast.ClassDef, ast.ImportFrom, ast.Assign)
"""Statements that define names unconditionally."""
_LIBRARY = os.path.dirname(os.path.realpath(os.__file__))
_MISSING = object()


class Helpers:
    """Comparison of helpers with the files that define them.

    Args:
        trust: decides which code is a library's or a test's.
    """

    def __init__(self, trust: Trust) -> None:
        self._trust = trust
        self._files: dict[str, _File | None] = {}
        self._size = 0
        self._tests: list[tuple[Any, Any]] = []

    def expect(self, tests: "Iterable[tuple[Any, Any]]") -> None:
        """Set the tests of the session.

        Args:
            tests: function and class of each; None if there is none.
        """
        self._tests = list(tests)

    def altered(self) -> "tuple[set[str], set[str]]":
        """Return a phrase for each function, and for each constant, that differs from its file."""
        comparison = _Look(self._file, self._trust.replaces_helper)
        classes: dict[int, tuple[type, set[str]]] = {}
        for function, of_class in self._tests:
            inner = function
            while type(inner) is types.FunctionType:
                comparison.follow(inner)
                if isinstance(of_class, type):
                    classes.setdefault(id(of_class), (of_class, set()))[1].update(_names(inner.__code__))
                inner = vars(inner).get("__wrapped__")
        for class_, names in classes.values():
            comparison.methods(class_, names)
        comparison.finish()
        return comparison.replaced, comparison.changed

    def _file(self, space: "dict[str, Any]") -> "_File | None":
        """Return the parsed file of a module's namespace; None if it is not compared."""
        name = space.get("__file__")
        if type(name) is not str or not name.endswith(".py"):
            return None
        path = os.path.realpath(name)
        if path not in self._files:
            self._files[path] = self._read(path)
        return self._files[path]

    def _read(self, path: str) -> "_File | None":
        if self._trust.is_product(path) or not self._trust.is_older(path) or _is_frozen(path):
            return None
        try:
            self._size += os.stat(path).st_size
            if self._size > _MAX_BYTES:
                return None
            with open(path, "rb") as file:
                source = file.read()
            return _File(path, source, self._trust)
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            return None


class _File:
    """Definitions of a Python file.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: the source cannot be parsed.
    """

    def __init__(self, path: str, source: bytes, trust: Trust) -> None:
        self.path = path
        self.is_installed = trust.is_installed(path)
        self.trust = trust
        self.defined: dict[str, Any] = {}
        """Name → statement, for names bound once and unconditionally."""
        self.stars: list[ast.ImportFrom] = []
        tree = ast.parse(source, path)
        if not _REBINDS.isdisjoint(_called(tree)):
            return
        statements = [(node, ast.Module(body=[node], type_ignores=[])) for node in tree.body]
        bindings = [list(_bound(alone)) for _, alone in statements]
        bound: dict[str, int] = {}
        for names in (*bindings, _globals(tree) if b"global" in source else ()):
            for name in names:
                bound[name] = bound.get(name, 0) + 1
        for (statement, alone), names in zip(statements, bindings):
            stars = [node for node in _nodes(alone) if _is_star(node)]
            if stars:
                self.stars += stars
                self.defined.clear()  # star imports may define the same names
            if isinstance(statement, _PLAIN):
                self.defined.update((name, statement) for name in names if bound[name] == 1)

    def is_of(self, name: str, value: "Any") -> bool:
        """Return whether a value claims to be the file's function of that name."""
        if type(value) is not types.FunctionType or value.__code__.co_name != name:
            return False
        return os.path.realpath(value.__code__.co_filename) == self.path

    def is_same(self, statement: "Any", function: types.FunctionType) -> bool:
        """Return whether a function matches its definition in the file."""
        home = function.__globals__.get("__file__")  # may be of an earlier import of the module
        keywords, parameters = function.__kwdefaults__ or {}, statement.args
        return (
            type(home) is str
            and os.path.realpath(home) == self.path
            and self.trust.code(function.__code__)
            and _has(function.__defaults__ or (), parameters.defaults)
            and _has([keywords.get(arg.arg) for arg in parameters.kwonlyargs], parameters.kw_defaults)
        )


class _Look:
    """One comparison of all helpers that the given tests name."""

    def __init__(
        self, file_of: "Callable[[dict[str, Any]], _File | None]", may_replace: "Callable[[Any], bool]"
    ) -> None:
        self.replaced: set[str] = set()
        self.changed: set[str] = set()
        self._file_of = file_of
        self._may_replace = may_replace
        self._todo: list[types.FunctionType] = []
        self._seen: set[tuple[int, ...]] = set()

    def follow(self, function: types.FunctionType) -> None:
        """Queue a function, whose helpers ``finish`` compares."""
        if self._is_new(id(function)):
            self._todo.append(function)

    def _is_new(self, *key: int) -> bool:
        if key in self._seen:
            return False
        self._seen.add(key)
        return True

    def finish(self) -> None:
        """Compare all helpers that the queued functions name, and those named in turn."""
        while self._todo:
            function = self._todo.pop()
            space = function.__globals__
            names = _names(function.__code__)
            file = self._file_of(space)
            for name in names.intersection(space):
                inside = file is None or not file.is_installed
                if inside or isinstance(file.defined.get(name) if file else None, _FUNCTIONS):
                    self._value(space, name, space[name], names)

    def methods(self, of_class: type, names: "set[str]") -> None:
        """Compare the methods of a test class and its bases that its tests name."""
        for class_ in of_class.__mro__:
            module = sys.modules.get(class_.__module__)
            file = self._file_of(vars(module)) if type(module) is types.ModuleType else None
            if module is None or file is None or file.is_installed:
                continue
            statement = file.defined.get(class_.__name__)
            if not isinstance(statement, ast.ClassDef) or statement.decorator_list:
                continue
            if vars(module).get(class_.__name__) is not class_:
                continue
            bound = list(_bound(statement))
            for inner in statement.body:
                if isinstance(inner, _FUNCTIONS) and inner.name in names and bound.count(inner.name) == 1:
                    value = vars(class_).get(inner.name, _MISSING)
                    self._function(file, vars(module), inner, value, "%s.%s" % (class_.__name__, inner.name))

    def _value(
        self, space: "dict[str, Any]", name: str, value: "Any", names: "set[str]", modules: int = 0
    ) -> None:
        """Compare the value of a name in a module."""
        if type(value) is types.ModuleType:
            if modules < _MAX_MODULES and self._is_new(id(value), hash(frozenset(names))):
                for inner in names.intersection(vars(value)):
                    self._value(vars(value), inner, vars(value)[inner], names, modules + 1)
            return
        if not self._is_new(id(space), hash(name), id(value)):
            return
        file = self._file_of(space)
        if file is None:
            return
        statement = file.defined.get(name)
        if isinstance(statement, _FUNCTIONS):
            self._function(file, space, statement, value, name)
        elif isinstance(statement, ast.ImportFrom):
            original = next(alias.name for alias in statement.names if (alias.asname or alias.name) == name)
            self._imported(space, statement, original, value, names)
        elif statement is None:
            for star in file.stars:
                self._imported(space, star, name, value, names)
        elif not file.is_installed and not _is_written(statement, value):
            self.changed.add("%s.%s was changed" % (space.get("__name__"), name))

    def _imported(
        self, space: "dict[str, Any]", statement: ast.ImportFrom, name: str, value: "Any", names: "set[str]"
    ) -> None:
        """Compare a value with the definition in the module that it was imported from."""
        module = sys.modules.get(_absolute(space, statement))
        if type(module) is types.ModuleType and name in vars(module):
            self._value(vars(module), name, value, names)

    def _function(
        self, file: _File, space: "dict[str, Any]", statement: "Any", value: "Any", name: str
    ) -> None:
        if statement.decorator_list:
            return
        if file.is_of(statement.name, value):
            is_right = file.is_same(statement, value)
            self.follow(value)
        else:
            is_right = self._may_replace(value)
        if not is_right:
            self.replaced.add("%s.%s was replaced" % (space.get("__name__"), name))


def _is_frozen(path: str) -> bool:
    """Return whether a library module's code is frozen into the interpreter."""
    if not path.startswith(_LIBRARY + os.sep):
        return False
    name = path[len(_LIBRARY) + 1 : -len(".py")].replace(os.sep, ".")
    return _imp.is_frozen(name) or name.startswith("importlib._bootstrap")  # these have other frozen names


def _names(code: types.CodeType) -> "set[str]":
    """Return the global names and attributes that code uses."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names(constant)
    return names


def _nodes(tree: "Any") -> "Iterator[Any]":
    """Yield the nodes of a module's or class's own statements, without those in functions and classes."""
    todo = list(ast.iter_child_nodes(tree))
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, (*_FUNCTIONS, ast.ClassDef, ast.Lambda)):
            todo.extend(ast.iter_child_nodes(node))


def _bound(tree: "Any") -> "Iterator[str]":
    """Yield every name that a module's or class's own statements bind, once per binding."""
    for node in _nodes(tree):
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                yield (alias.asname or alias.name).partition(".")[0]
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield node.name


def _globals(tree: ast.Module) -> "Iterator[str]":
    """Yield the names that functions of a module declare as global, once per declaration."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            yield from node.names


def _is_star(node: "Any") -> bool:
    return isinstance(node, ast.ImportFrom) and node.names[0].name == "*"


def _called(tree: ast.Module) -> "Iterator[str]":
    return (node.id for node in _nodes(tree) if isinstance(node, ast.Name))


def _absolute(space: "dict[str, Any]", statement: ast.ImportFrom) -> str:
    """Return the full name of the module that a statement imports from."""
    package = str(space.get("__package__") or "").split(".")
    above = package[: len(package) + 1 - statement.level] if statement.level else []
    return ".".join([*above, *(statement.module or "").split(".")]).strip(".")


def _is_written(statement: "Any", value: "Any") -> bool:
    """Return whether a value is the constant that a statement assigns; True for other statements."""
    if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
        return True
    return _has([value], [statement.value])


def _has(values: "Iterable[Any]", written: "Iterable[Any]") -> bool:
    """Return whether values equal the written constants; other expressions are skipped."""
    for value, node in zip(values, written):
        try:
            wanted = ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, RecursionError):
            continue
        if not _holds(value, wanted):
            return False
    return True


def _holds(value: "Any", wanted: "Any") -> bool:
    """Return whether a value equals a written constant; elements added to a list, dict or set are ignored."""
    if type(value) is not type(wanted):
        return False
    if type(wanted) is dict:
        return all(key in value and _holds(value[key], item) for key, item in wanted.items())
    if type(wanted) is set:
        return bool(wanted <= value)
    if type(wanted) in (list, tuple):
        return len(value) >= len(wanted) and all(map(_holds, value, wanted))
    return bool(value == wanted)
