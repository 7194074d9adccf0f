"""Detect changes to the test runner by the project's code. A plain script for Python ≥ 3.6.

Watched are all names of the runner's modules and classes (added ones too), the exceptions and types among the
builtins, the code of functions, hooks and collected tests, the helpers that tests name (``pytest_helpers``),
trace and profile functions, and the recorder's callers. A change is a finding unless all of its code is
trusted (``pytest_trust``), so that honest projects cause none.

Objects that equal everything, values read from frames, and code that undoes itself in time cannot be detected
inside the process; audits with mutated tests cover them. To watch more, extend ``WATCHED`` and ``HOOKS``.
"""

import builtins
import importlib
import operator
import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from engine.testing.pytest_helpers import Helpers
    from engine.testing.pytest_trust import Trust, functions, is_code, is_native
else:
    from trainyard_helpers import Helpers
    from trainyard_trust import Trust, functions, is_code, is_native

WATCHED = (
    "pytest", "_pytest.runner", "_pytest.reports", "_pytest.junitxml", "_pytest.main", "_pytest.python",
    "_pytest.unittest", "_pytest.outcomes", "_pytest.nodes", "_pytest.skipping", "_pytest.subtests",
    "_pytest.raises", "_pytest.python_api", "_pytest.recwarn", "_pytest.warnings", "_pytest.compat",
    "_pytest.terminal", "_pytest.fixtures", "_pytest.logging", "_pytest.assertion.rewrite",
    "_pytest._code.code",
    "unittest.case", "unittest.result", "unittest.suite", "unittest.runner",
)  # fmt: skip
UNITTEST = tuple(name for name in WATCHED if name.startswith("unittest."))
"""Modules that are watched if ``unittest`` itself runs the tests."""
HOOKS = (
    "pytest_pyfunc_call", "pytest_runtest_protocol", "pytest_runtestloop", "pytest_runtest_call",
    "pytest_runtest_setup", "pytest_runtest_teardown", "pytest_runtest_makereport",
    "pytest_runtest_logreport", "pytest_collection_modifyitems", "pytest_report_teststatus",
    "pytest_itemcollected", "pytest_sessionfinish", "pytest_pycollect_makeitem", "pytest_generate_tests",
    "pytest_deselected",
)  # fmt: skip
_REPLACED = ("runtest", "setup", "teardown", "repr_failure", "runtestprotocol")
_LAZY = ("__slotnames__", "__warningregistry__", "__annotations_cache__", "__annotations__")
"""Names that Python itself adds to classes and modules."""
_BUILTINS = (
    "isinstance", "issubclass", "getattr", "hasattr", "setattr", "callable", "repr", "len", "all", "any",
    "sorted", "sum", "max", "min", "compile", "exec", "eval", "abs", "zip", "iter", "next", "__build_class__",
)  # fmt: skip
_RUNNER = ("pytest", "_pytest", "pluggy", "unittest", "builtins", "None")
"""Packages that the runner's own values name as theirs; outcome classes name ``builtins``."""
_MISSING = object()


class Guard:
    """Comparison of the test runner with its state at creation, before any code of the project ran.

    Args:
        workdir, changed: see ``Trust``.
        watched: modules of the runner.
    """

    def __init__(
        self,
        workdir: str,
        changed: "Iterable[str] | None" = None,
        watched: "Iterable[str]" = WATCHED,
    ) -> None:
        self.trust = Trust(workdir, changed)
        self.found: set[str] = set()
        """Findings, one short phrase each."""
        self.changed: set[str] = set()
        """Changed constants of test files; an honest project's fixtures may change them."""
        # If the project is pytest itself, it may change everything; only audits detect fraud.
        self._is_subject = "pytest" in watched and self.trust.holds(
            str(importlib.import_module("_pytest").__file__)
        )
        self._modules: dict[str, types.ModuleType] = {}
        self._spaces: list[_Space] = []
        self._functions: list[Any] = []
        self._labels: list[str] = []
        self._codes: list[types.CodeType] = []
        self._items: list[tuple[Any, types.CodeType | None]] = []
        self._helpers = Helpers(self.trust)
        # Tests of projects that need no frames or tracers remove these names from ``sys``.
        self._frame, self._tracer, self._profiler = sys._getframe, sys.gettrace, sys.getprofile
        for name in watched:
            try:
                module = importlib.import_module(name)
            except ImportError:  # not every version has every module
                continue
            self._modules[name] = module
        self._modules.update(
            (name, value) for name, value in sys.modules.items() if name.startswith("pluggy")
        )
        for name, module in self._modules.items():
            self._watch_module(name, module)
        self._builtins = {
            name: value
            for name, value in vars(builtins).items()
            if isinstance(value, type) or name in _BUILTINS
        }
        self.trust.accept(self._codes)
        self._base = getattr(
            getattr(self._modules.get("_pytest.main"), "wrap_session", None), "__code__", None
        )

    def _watch_module(self, name: str, module: "types.ModuleType") -> None:
        self._watch(name, vars(module))
        for key, value in list(vars(module).items()):
            if isinstance(value, type) and not is_native(value) and value.__module__ in (name, "builtins"):
                self._watch("%s.%s" % (name, key), vars(value))

    def _watch(self, label: str, names: "Any") -> None:
        self._spaces.append(_Space(label, names))
        for key, value in list(names.items()):
            for function in functions(value):
                self._functions.append(function)
                self._labels.append("%s.%s" % (label, key))
                self._codes.append(function.__code__)

    def accept_hooks(self, config: "Any") -> None:
        """Trust the existing hooks; a project that is a plugin of pytest itself has some."""
        codes = [getattr(_underlying(function), "__code__", None) for _, function in _hooks(config)]
        self.trust.accept(code for code in codes if code is not None)

    def collected(self, items: "list[Any]") -> None:
        """Note the code of collected tests, and check their helpers."""
        self._items = [(item, _code_of(item)) for item in items]
        self.expect((_underlying(getattr(item, "obj", None)), getattr(item, "cls", None)) for item in items)

    def expect(self, tests: "Iterable[tuple[Any, Any]]") -> None:
        """Note the functions and classes of tests, and check their helpers.

        Helpers are checked before the first test and after the last; fixtures may replace them in between.
        """
        if not self._is_subject:
            self._helpers.expect(tests)
            self._check_helpers()

    def check(self) -> None:
        """Compare the runner's names, functions and builtins, and check this thread's trace functions."""
        if self._is_subject:
            return
        for space in self._spaces:
            if space.changed():
                self._compare(space)
        if not all(map(operator.is_, map(_CODE, self._functions), self._codes)):
            for label, function, code in zip(self._labels, self._functions, self._codes):
                if function.__code__ is not code and not self.trust.patch(function):
                    self.found.add("%s has other code" % label)
        for name, value in self._builtins.items():
            now = vars(builtins).get(name, _MISSING)
            if now is not value and not self.trust.patch(now):
                self.found.add("builtins.%s was replaced" % name)
        for name, module in self._modules.items():
            # Tests of interpreters replace the main module; the recorder still uses its own.
            if sys.modules.get(name, module) is not module and name != "__main__":
                self.found.add("%s was replaced" % name)
        for kind, function in (("traced", self._tracer()), ("profiled", self._profiler())):
            if function is not None and not self._is_tracer(function):
                self.found.add("the tests were %s by the project" % kind)

    def _is_tracer(self, function: "Any") -> bool:
        function = _underlying(function)
        return self.trust.value(function if isinstance(function, types.FunctionType) else type(function))

    def _compare(self, space: "_Space") -> None:
        for name in sorted(set(space.names) | set(space.original), key=str):
            old, new = space.original.get(name, _MISSING), space.names.get(name, _MISSING)
            if new is old or name in _LAZY:
                continue
            if old is _MISSING:
                how, harmful = "added", self._is_harmful_addition(space, name, new)
            elif new is _MISSING:
                how, harmful = "removed", is_code(old)
            else:
                how, harmful = "replaced", self._is_harmful_change(space, old, new)
            if harmful:
                self.found.add("%s.%s was %s" % (space.label, name, how))

    def _is_harmful_addition(self, space: "_Space", name: str, new: "Any") -> bool:
        if not space.of_class:
            return hasattr(builtins, name) and not self.trust.patch(new)
        # Runners do not use the names that projects add to the base class of their tests.
        helper = space.label == "unittest.case.TestCase" and not name.startswith("_") and name != "runTest"
        own = name.startswith("_pytest_") and not is_code(new)  # data that pytest stores in a class
        return not helper and not own and not self.trust.patch(new)

    def _is_harmful_change(self, space: "_Space", old: "Any", new: "Any") -> bool:
        if not is_code(old):
            return is_code(new) and not self.trust.patch(new)
        home = str(getattr(old, "__module__", "")).partition(".")[0]
        if space.of_class or home in _RUNNER:
            return not self.trust.patch(new)
        return not self.trust.value(new)

    def check_all(self, config: "Any") -> None:
        """Compare the hooks and the collected tests as well.

        Args:
            config: pytest's configuration; None if pytest ended before it had one.
        """
        if self._is_subject:
            return
        self.check()
        self._check_helpers()
        if config is None:
            return
        for item, collected in self._items:
            for name in _REPLACED:
                if name in vars(item) and not self.trust.value(vars(item)[name]):
                    self.found.add("the test %s was exchanged" % item.nodeid)
            if _code_of(item) is not collected and not self.trust.value(item.obj):
                self.found.add("the test %s was exchanged" % item.nodeid)
        for name, function in _hooks(config):
            if not self.trust.value(_underlying(function)):
                self.found.add("a hook %s was added" % name)

    def _check_helpers(self) -> None:
        replaced, changed = self._helpers.altered()
        self.found |= replaced
        self.changed |= changed

    def check_caller(self) -> None:
        """Add a finding if the project's code, instead of pytest's session, called the recorder."""
        frame = None if self._is_subject else self._frame(1)
        while frame is not None and frame.f_code is not self._base:
            if self.trust.project(frame.f_code):
                self.found.add("%s called pytest's hooks" % frame.f_code.co_name)
                return
            frame = frame.f_back


class _Space:
    """Names of a module or class: their original values, and those last seen."""

    def __init__(self, label: str, names: "Any") -> None:
        self.label = label
        self.names = names
        self.of_class = not isinstance(names, dict)
        self.original = dict(names)
        self._seen = list(names.values())

    def changed(self) -> bool:
        """Return whether the names have changed since the last call."""
        if len(self.names) == len(self._seen) and all(map(operator.is_, self.names.values(), self._seen)):
            return False
        self._seen = list(self.names.values())
        return True


_CODE = operator.attrgetter("__code__")


def _hooks(config: "Any") -> "Iterator[tuple[str, Any]]":
    """Yield the implementations of watched hooks."""
    for name in HOOKS:
        hook = getattr(config.hook, name, None)
        for implementation in getattr(hook, "get_hookimpls", list)():
            yield name, implementation.function


def _underlying(function: "Any") -> "Any":
    return getattr(function, "__func__", function)


def _code_of(item: "Any") -> "types.CodeType | None":
    code = getattr(_underlying(getattr(item, "obj", None)), "__code__", None)
    return code if isinstance(code, types.CodeType) else None
