"""Decide which code may change the test runner: a library's or a test's. A plain script for Python ≥ 3.6.

Code is judged by its content, not by its claims: the file that a code object names must be older than the
session and compile to the same code.
"""

import os
import re
import sys
import time
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

_INSTALLED = re.compile(r"[/\\](?:site-packages|dist-packages|lib[/\\]python\d)")
_TEST_FOLDERS = ("tests", "test", "testing", "r2e_tests")
_OWN = (
    "conftest.py",
    *("trainyard_%s.py" % name for name in ("recorder", "guard", "trust", "helpers", "unittest")),
)
_NATIVE = (
    types.BuiltinFunctionType, types.ModuleType, type(object.__init__), type(object().__str__),
    type(str.join), type(vars(dict)["fromkeys"]), type(types.FunctionType.__code__),
    type(types.FunctionType.__globals__),
)  # fmt: skip
_HEAP_TYPE = 1 << 9


class Trust:
    """Check whether code is a library's or a test's, and older than this session.

    Args:
        workdir: the project's folder; code there counts as the project's, unless it is a test or installed.
        changed: files changed by the tested submission, if known; code of other files that are older than the
            session is then trusted like that of tests.
    """

    def __init__(self, workdir: str, changed: "Iterable[str] | None" = None) -> None:
        self._root = os.path.realpath(workdir) + os.sep
        self._toolchain = os.path.dirname(os.path.realpath(__file__)) + os.sep
        self._changed = None if changed is None else {os.path.realpath(path) for path in changed}
        self._since = time.time()
        self._known: dict[int, tuple[types.CodeType, bool]] = {}
        self._files: dict[str, dict[str, list[types.CodeType]]] = {"_plain": {}, "_rewritten": {}}
        self._config: Any = None
        self._places: tuple[str, ...] = (self._root,)

    def configure(self, config: "Any") -> None:
        """Use pytest's configuration to compile tests as pytest does, and to find its plugins' folders."""
        self._config = config
        plugins = config.pluginmanager.get_plugins()
        files = {os.path.realpath(str(getattr(plugin, "__file__", ""))) for plugin in plugins}
        own = os.path.dirname(os.path.realpath(str(sys.modules["_pytest"].__file__))) + os.sep
        packages = {_package(path) for path in files if self.is_installed(path) and not path.startswith(own)}
        # legacypath.py adds names to pytest's classes when pytest is configured.
        self._places = (self._root, own + "legacypath.py", *sorted(packages))

    def project(self, code: types.CodeType) -> bool:
        """Return whether code names a file of the project, or no file."""
        path = os.path.realpath(code.co_filename)
        if self._changed is not None:
            if path in self._changed:
                return True
            if self.is_older(path):
                return False
        return self.is_product(path)

    def is_product(self, path: str) -> bool:
        """Return whether a file is the project's own and, by its name, not a test."""
        path = os.path.realpath(path)
        if not self.holds(path):
            return False
        parts = path[len(self._root) :].split(os.sep)
        name = parts[-1]
        return not (
            name in _OWN
            or name.startswith("test_")
            or name.endswith(("_test.py", "_tests.py"))
            or any(part in _TEST_FOLDERS for part in parts[:-1])
        )

    def holds(self, path: str) -> bool:
        """Return whether a file is the project's own, not an installed one."""
        path = os.path.realpath(path)
        return path.startswith(self._root) and not self.is_installed(path)

    def is_installed(self, path: str) -> bool:
        """Return whether a file belongs to an installed package; the driver's toolchain has some."""
        in_toolchain = path.startswith(self._toolchain) and not path.startswith(self._root)
        return in_toolchain or _INSTALLED.search(path) is not None

    def is_older(self, path: str) -> bool:
        """Return whether a file exists, and has not changed since the session began."""
        try:
            return os.stat(path).st_ctime < self._since
        except OSError:
            return False

    def accept(self, codes: "Iterable[types.CodeType]") -> None:
        """Trust the given code objects."""
        self._known.update((id(code), (code, True)) for code in codes)

    def code(self, code: types.CodeType) -> bool:
        """Return whether code equals the compiled code of the library's or test's file that it names."""
        if id(code) not in self._known:
            self._known[id(code)] = code, not self.project(code) and self._is_compiled(code)
        return self._known[id(code)][1]

    def value(self, value: "Any", places: "tuple[str, ...]" = (os.sep,)) -> bool:
        """Return whether all code behind a value is trusted, as far as it can be followed.

        Args:
            places: folders that may contain its files.
        """
        return self._follow(value, places, set())

    def patch(self, value: "Any") -> bool:
        """Return whether a value may replace one of the runner's: a plugin's or a test's code."""
        members = vars(value).values() if isinstance(value, type) else [value]
        return any(functions(member) for member in members) and self.value(value, self._places)

    def replaces_helper(self, value: "Any") -> bool:
        """Return whether a value may replace a test's helper: the code of a test or of a plugin.

        Unlike ``patch``, this accepts no code of the project, even in files that the submission did not
        change. Runs of the gold patch show which projects patch helpers.
        """
        own = functions(value)
        return self.patch(value) and not any(
            self.is_product(function.__code__.co_filename) for function in own
        )

    def _follow(self, value: "Any", places: "tuple[str, ...]", seen: "set[int]") -> bool:
        if id(value) in seen:
            return True
        seen.add(id(value))
        kind = type(value)
        if kind is types.MethodType:
            return self._follow(value.__func__, places, seen)
        if kind in (staticmethod, classmethod, property):
            return all(self._follow(function, places, seen) for function in _parts(value))
        if kind is types.FunctionType:
            path = os.path.realpath(value.__code__.co_filename)
            cells = [cell.cell_contents for cell in value.__closure__ or () if _filled(cell)]
            inside = self.code(value.__code__) and path.startswith(places)
            return inside and all(self._follow(cell, (os.sep,), seen) for cell in cells)
        if isinstance(value, type) and not is_native(value):
            return all(self._follow(member, places, seen) for member in list(vars(value).values()))
        return is_native(value) or not is_code(value)

    def _is_compiled(self, code: types.CodeType) -> bool:
        path = os.path.realpath(code.co_filename)
        for compiled in (self._plain, self._rewritten):  # the second takes longer
            if path not in self._files[compiled.__name__]:
                self._files[compiled.__name__][path] = list(self._codes(path, compiled))
            if any(_same(code, other) for other in self._files[compiled.__name__][path]):
                return True
        return False

    def _codes(self, path: str, compiled: "Callable[[str, bytes], Any]") -> "Iterator[types.CodeType]":
        """Yield the code objects of a file that is older than the session."""
        try:
            if not self.is_older(path):
                return
            with open(path, "rb") as file:
                source = file.read()
            yield from _nested(compiled(path, source))
        except (OSError, SyntaxError, ValueError):
            return

    def _plain(self, path: str, source: bytes) -> types.CodeType:
        code: types.CodeType = compile(source, path, "exec", dont_inherit=True)
        return code

    def _rewritten(self, path: str, source: bytes) -> types.CodeType:
        """Compile a module as pytest does, with its assertions rewritten."""
        import ast

        from _pytest.assertion.rewrite import rewrite_asserts

        for arguments in ((source, path, self._config), (path, self._config), ()):
            try:
                tree = ast.parse(source, path)
                rewrite_asserts(tree, *arguments)
                break
            except (TypeError, AttributeError):  # another version of pytest
                continue
        code: types.CodeType = compile(tree, path, "exec", dont_inherit=True)
        return code


def _nested(code: types.CodeType) -> "Iterator[types.CodeType]":
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _nested(constant)


def _same(one: types.CodeType, other: types.CodeType) -> bool:
    """Return whether two code objects are equal; tables of lines and columns may differ."""
    if one.co_name != other.co_name or one.co_code != other.co_code or one.co_names != other.co_names:
        return False
    if one.co_varnames != other.co_varnames or len(one.co_consts) != len(other.co_consts):
        return False
    for mine, yours in zip(one.co_consts, other.co_consts):
        if isinstance(mine, types.CodeType) and isinstance(yours, types.CodeType):
            if not _same(mine, yours):
                return False
        elif type(mine) is not type(yours) or mine != yours:
            return False
    return True


def _package(path: str) -> str:
    """Return the folder of an installed package, or the file of a single-file module."""
    folder = os.path.dirname(path)
    while os.path.exists(os.path.join(os.path.dirname(folder), "__init__.py")):
        folder = os.path.dirname(folder)
    return folder + os.sep if os.path.exists(os.path.join(folder, "__init__.py")) else path


def _filled(cell: "Any") -> bool:
    try:
        cell.cell_contents  # noqa: B018  raises where the cell is empty
    except ValueError:
        return False
    return True


def is_native(value: "Any") -> bool:
    """Return whether a value is native: a module, or a type or function implemented in C."""
    return type(value) in _NATIVE or (isinstance(value, type) and not value.__flags__ & _HEAP_TYPE)


def _parts(value: "Any") -> "list[Any]":
    """Return the functions that a descriptor wraps, or the value itself."""
    if isinstance(value, property):
        return [part for part in (value.fget, value.fset, value.fdel) if part is not None]
    return [value.__func__] if isinstance(value, (staticmethod, classmethod)) else [value]


def functions(value: "Any") -> "list[types.FunctionType]":
    """Return the Python functions that a value is or wraps."""
    return [part for part in _parts(value) if isinstance(part, types.FunctionType)]


def is_code(value: "Any") -> bool:
    """Return whether a value can be called, or computes attributes."""
    return callable(value) or hasattr(type(value), "__get__")
