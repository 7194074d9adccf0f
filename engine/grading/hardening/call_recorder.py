"""Plugin of pytest that records calls of tests, in the sandbox of a solved task.

It writes calls that tests and fixtures make of public functions, classes and methods of the project, with
literal arguments, during which changed code runs. The object of a method is recorded as the steps by which
the tests build it, or reach it in another object. Everything that it writes comes from a process of the
tested code and is not trusted.

Standard library only. ``literals`` and ``public_names`` lie beside it as ``trainyard_literals`` and
``trainyard_names``.

``trainyard_calls.json`` beside it has its settings::

    {"workdir", "roots", "tests": [paths], "changed": {path: [[first line, last line], …]},
     "calls": path, "results": path}

Calls are lines ``{"module", "steps": [[name, arguments, keywords, returns], …], "defaults"}`` with source of
a tuple and of dicts; without arguments a step reads an attribute. The first step is a name of the module,
each other one of the object: the result of the last step before that ``returns``. ``defaults``: the arguments
that the last step leaves out, where the default is a literal.
"""

from __future__ import annotations

import dis
import json
import sys
import types
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
if str(FOLDER) not in sys.path:
    sys.path.append(str(FOLDER))
from trainyard_literals import MAX_STEPS, OPERATORS, NotLiteralError, render  # type: ignore[import-not-found]  # noqa: E402
from trainyard_names import PublicNames, attribute, definition, is_public  # type: ignore[import-not-found]  # noqa: E402

MAX_CALLS, MAX_OF_FUNCTION = 400, 60
"""Recorded different calls, in all and of one function."""
_MAX_OBJECTS = 500
"""Objects that are followed, and so kept alive, at once."""
_CONTAINERS = (list, tuple)
"""Types of the project's results whose items are followed, too."""
_MAX_INSIDE, _MAX_PARTS, _MAX_SEARCHES = 400, 20, 2_000
"""Objects among which one is searched inside of followed ones, parts of each, and searches."""
_READING = OPERATORS - {"__call__", "__setitem__", "__delitem__"}
"""Methods after which an object counts as unchanged."""
_CALLING = ("/unittest/case.py", "/_pytest/raises.py", "/_pytest/python_api.py")
"""Ends of paths of the modules that call a function for a test, to see it raise."""
_GENERATOR = 0x20 | 0x80 | 0x200
"""Flags of the code of generators and coroutines, whose frames return several times."""
_RETURNS = {dis.opmap.get(name) for name in ("RETURN_VALUE", "RETURN_CONST")}


class _Object:
    """A followed object: how it is built, and whether changed code ran meanwhile."""

    def __init__(self, value: object, module: str, steps: tuple[Any, ...], touched: bool) -> None:
        self.value = value
        self.module = module
        self.steps = steps
        self.touched = touched


class _Target:
    """A function that a test calls, by the name under which generated tests can call it.

    ``owner``: the object whose method it is. ``built``: the object that it initializes. ``bound``: number of
    parameters that the call does not name.
    """

    def __init__(
        self,
        module: str,
        name: str,
        function: Any,
        *,
        bound: int = 0,
        owner: _Object | None = None,
        built: object = None,
        reads: bool = False,
    ) -> None:
        self.module, self.name, self.function, self.bound = module, name, function, bound
        self.owner, self.built, self.reads = owner, built, reads
        self.before = owner.steps if owner is not None else ()
        self.arguments, self.keywords, self.defaults = "", "{}", "{}"


class CallRecorder:
    """Plugin that records calls while tests run.

    Args:
        settings: see the module.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self._workdir = settings["workdir"].rstrip("/") + "/"
        self._tests = {self._workdir + path for path in settings["tests"]}
        self._changed = {self._workdir + path: lines for path, lines in settings["changed"].items()}
        self._everything = not any(self._changed.values())
        self._output = settings["calls"]
        self._names = PublicNames(self._workdir, self._tests)
        self._objects: dict[int, _Object] = {}
        self._is_changed: dict[types.CodeType, bool] = {}
        self._seen: dict[tuple[str, tuple[Any, ...]], str] = {}
        """Module and steps of a call → its default arguments."""
        self._counts: dict[tuple[str, ...], int] = {}
        self._frame: types.FrameType | None = None
        self._target: Any = None
        self._num_searches = 0
        self._touched = False

    def pytest_runtest_setup(self) -> None:
        """Start recording before the fixtures of a test are made."""
        self._start()

    def pytest_runtest_call(self) -> None:
        """Record with the modules that the fixtures imported."""
        self._start()

    def _start(self) -> None:
        sys.setprofile(None)
        self._names.update()
        self._frame = None
        sys.setprofile(self._profile)

    def pytest_runtest_teardown(self) -> None:
        """Stop recording."""
        sys.setprofile(None)

    def pytest_sessionfinish(self) -> None:
        """Write the calls."""
        with open(self._output, "w", encoding="ascii") as file:  # noqa: PTH123
            file.writelines(
                json.dumps({"module": module, "steps": steps, "defaults": defaults}) + "\n"
                for (module, steps), defaults in self._seen.items()
            )

    def _is_test(self, path: str) -> bool:
        is_support = path.startswith(self._workdir) and path.endswith("/conftest.py")
        return path in self._tests or is_support

    def _profile(self, frame: types.FrameType, event: str, argument: object) -> None:
        try:
            if event == "return" and frame is self._frame:
                self._frame = None
                self._end(frame, argument)
            elif event == "call":
                if self._frame is None and self._is_test(_caller(frame)):
                    self._begin(frame)
                if self._frame is not None and not self._touched:
                    self._touched = self._runs_changed(frame.f_code)
        except Exception:  # objects of the project may do anything when they are read
            return

    def _begin(self, frame: types.FrameType) -> None:
        target = self._target_of(frame)
        if target is None or len(self._seen) >= MAX_CALLS:
            return
        try:
            if not target.reads:
                positional, keywords, defaults = _arguments(frame, target.function, target.bound)
                target.arguments, target.keywords = render(positional), render(keywords)
                target.defaults = render(defaults) if _is_literal(defaults) else "{}"
        except NotLiteralError:
            if target.owner is not None and target.name not in _READING:  # its state can no longer be built
                self._objects.pop(id(target.owner.value), None)
            return
        self._target, self._frame = target, frame
        self._touched = self._everything or (target.owner is not None and target.owner.touched)

    def _target_of(self, frame: types.FrameType) -> _Target | None:
        """Return the public function of a frame; None if there is none."""
        code = frame.f_code
        if code in self._names.functions:
            return _Target(*self._names.functions[code])
        if not code.co_argcount:
            return None
        owner: Any = frame.f_locals[code.co_varnames[0]]
        if (code, id(owner)) in self._names.functions:
            return _Target(*self._names.functions[code, id(owner)], bound=1)
        if issubclass(type(owner), type):
            return self._of_class(owner, code)
        return self._of_object(owner, code)

    def _of_class(self, owner: type, code: types.CodeType) -> _Target | None:
        """Return a class as the target of its ``__new__``, or its class method."""
        module, name, _ = self._names.classes.get(id(owner), ("", "", None))
        defined = definition(owner, code)
        if not module or defined is None:
            return None
        if code.co_name == "__new__":
            return _Target(module, name, defined[1], bound=1)
        if defined[0] is classmethod and is_public(code.co_name):
            return _Target(module, name + "." + code.co_name, defined[1], bound=1)
        return None

    def _of_object(self, value: object, code: types.CodeType) -> _Target | None:
        """Return the class of an object that is initialized, or a method or property of a followed object."""
        defined = definition(type(value), code)
        module, name, _ = self._names.classes.get(id(type(value)), ("", "", None))
        if defined is None:
            return None
        kind, function = defined
        if code.co_name == "__init__":
            return _Target(module, name, function, bound=1, built=value) if module else None
        if not (is_public(code.co_name) or code.co_name in OPERATORS):
            return None
        followed = self._objects.get(id(value)) or self._reached(value)
        is_plain = type(value).__init__ is object.__init__ and type(value).__new__ is object.__new__
        if followed is None and module and is_plain and not attribute(value, "__dict__"):
            followed = self._follow(value, module, ((name, "()", "{}", True),), touched=False)
        if followed is None or kind is classmethod:
            return None
        return _Target(
            followed.module, code.co_name, function, bound=1, owner=followed, reads=kind is property
        )

    def _is_own(self, value: object) -> bool:
        """Return whether a class of the project defines an object."""
        return bool(self._names.has_module(sys.modules.get(str(type(value).__module__))))

    def _reached(self, value: object) -> _Object | None:
        """Follow an object that lies inside of a followed one; return None for others."""
        if not self._is_own(value) or self._num_searches >= _MAX_SEARCHES:
            return None
        self._num_searches += 1
        inside = [(root.value, root.steps, root) for root in reversed(self._objects.values())]
        for holder, steps, root in inside:  # grows: the nearest objects first
            for step, part in self._parts(holder) if len(steps) < MAX_STEPS - 1 else ():
                if part is value:
                    return self._follow(value, root.module, (*steps, step), touched=root.touched)
                if len(inside) < _MAX_INSIDE and id(part) not in self._objects:
                    inside.append((part, (*steps, step), root))
        return None

    def _parts(self, value: Any) -> list[tuple[tuple[Any, ...], object]]:
        """Return the containers and the project's objects in an object, with the step that reads each."""
        parts: list[tuple[tuple[Any, ...], object]] = []
        if type(value) in (list, tuple):
            parts = [
                (("__getitem__", f"({at},)", "{}", True), part) for at, part in enumerate(value[:_MAX_PARTS])
            ]
        elif self._is_own(value):
            slots = [vars(base).get("__slots__", ()) for base in type(value).__mro__]
            slotted = [name for slot in slots for name in ((slot,) if type(slot) is str else slot)]
            names = [name for name in (*getattr(value, "__dict__", ()), *slotted) if is_public(name)]
            parts = [((name, "", "{}", True), attribute(value, name)) for name in names[:_MAX_PARTS]]
        return [(step, part) for step, part in parts if type(part) in _CONTAINERS or self._is_own(part)]

    def _follow(self, value: object, module: str, steps: tuple[Any, ...], *, touched: bool) -> _Object:
        if len(self._objects) >= _MAX_OBJECTS:
            self._objects.clear()
        self._objects[id(value)] = followed = _Object(value, module, steps, touched)
        return followed

    def _end(self, frame: types.FrameType, result: object) -> None:
        """Keep a call that ends, and follow the objects that it builds."""
        target, code = self._target, frame.f_code
        step = (target.name, target.arguments, target.keywords)
        if self._touched:
            self._keep(target.module, (*target.before, (*step, True)), target.defaults)
        raises = result is None and code.co_code[frame.f_lasti] not in _RETURNS
        if raises or code.co_flags & _GENERATOR:
            return
        if target.built is not None:
            self._follow(target.built, target.module, ((*step, True),), touched=self._touched)
        elif len(target.before) + 1 < MAX_STEPS:
            if id(result) not in self._objects and (type(result) in _CONTAINERS or self._is_own(result)):
                steps = (*target.before, (*step, True))
                self._follow(result, target.module, steps, touched=self._touched)
            if target.owner is not None and not target.reads and target.name not in _READING:
                target.owner.steps = (*target.before, (*step, False))
                target.owner.touched = self._touched
        elif target.owner is not None:
            self._objects.pop(id(target.owner.value), None)

    def _keep(self, module: str, steps: tuple[Any, ...], defaults: str) -> None:
        counted = (module, steps[0][0], steps[-1][0])
        if (module, steps) not in self._seen and self._counts.get(counted, 0) < MAX_OF_FUNCTION:
            self._seen[module, steps] = defaults
            self._counts[counted] = self._counts.get(counted, 0) + 1

    def _runs_changed(self, code: types.CodeType) -> bool:
        if code not in self._is_changed:
            lines = self._changed.get(code.co_filename, ())
            self._is_changed[code] = any(first <= code.co_firstlineno <= last for first, last in lines)
        return self._is_changed[code]


def _caller(frame: types.FrameType) -> str:
    """Return the file of the code that calls a function, also if it is called by ``pytest.raises``."""
    caller = frame.f_back
    while caller is not None and caller.f_code.co_filename.endswith(_CALLING):
        caller = caller.f_back
    return caller.f_code.co_filename if caller is not None else ""


def _arguments(
    frame: types.FrameType, function: Any, bound: int
) -> tuple[tuple[Any, ...], dict[str, Any], dict[str, Any]]:
    """Return the arguments of a call that begins, and those that are left out: equal to a literal default.

    Parameters with a default become keywords: another solution may have them in another order.
    """
    code, values = frame.f_code, frame.f_locals
    names = code.co_varnames[: code.co_argcount]
    after = code.co_argcount + code.co_kwonlyargcount
    more = values[code.co_varnames[after]] if code.co_flags & 4 else ()
    defaults = dict(zip(reversed(names), reversed(function.__defaults__ or ())))  # noqa: B905
    by_position = len(names) if more else max(code.co_posonlyargcount, len(names) - len(defaults))
    positional = [values[name] for name in names[:by_position]]
    while not more and len(positional) > bound:
        name = names[len(positional) - 1]
        if name not in defaults or not _is_same(positional[-1], defaults[name]):
            break
        positional.pop()
    only = code.co_varnames[code.co_argcount : after]
    defaults.update(function.__kwdefaults__ or {})
    keywords = {
        name: values[name]
        for name in (*names[by_position:], *only)
        if not (name in defaults and _is_same(values[name], defaults[name]))
    }
    given = {*names[: len(positional)], *keywords, *code.co_varnames[: code.co_posonlyargcount]}
    left_out = {name: value for name, value in defaults.items() if name not in given and _is_literal(value)}
    if code.co_flags & 8:
        keywords.update(values[code.co_varnames[after + bool(code.co_flags & 4)]])
    return (*positional[bound:], *more), keywords, left_out


def _is_same(value: object, default: object) -> bool:
    is_plain = _is_literal(value) and _is_literal(default)
    return value is default or (is_plain and bool(render(value) == render(default)))


def _is_literal(value: object) -> bool:
    try:
        render(value)
    except NotLiteralError:
        return False
    return True


def pytest_configure(config: Any) -> None:
    """Register the recorder."""
    settings = json.loads((FOLDER / "trainyard_calls.json").read_text(encoding="utf-8"))
    config.pluginmanager.register(CallRecorder(settings))
