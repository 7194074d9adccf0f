"""Program that records calls of tests and repeats them, in the sandbox of a solved task.

As a pytest plugin it writes calls that tests make of public functions of the project, with literal arguments,
during which changed code runs. ``python3 call_program.py [later]`` repeats calls and writes their results.
Standard library only; ``literals`` lies beside it as ``trainyard_literals``. Everything it writes comes from
a process of the tested code and is not trusted.

``trainyard_calls.json`` beside it has its settings::

    {"workdir", "roots", "tests": [paths], "changed": {path: [[first line, last line], …]},
     "calls": path, "results": path}

Calls are lines ``{"module", "function", "arguments", "keywords"}`` with source of a tuple and of a dict,
results lines ``{"number", "value", "iterator"}``.
"""

from __future__ import annotations

import ast
import importlib
import itertools
import json
import os
import signal
import sys
import time
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
if str(FOLDER) not in sys.path:
    sys.path.append(str(FOLDER))
from trainyard_literals import NotLiteralError, render  # type: ignore[import-not-found]  # noqa: E402

MAX_CALLS, MAX_OF_FUNCTION = 400, 60
"""Recorded different calls, in all and of one function."""
_MAX_ITEMS = 100
"""Items of an iterator that are part of a result."""
_CALL_S = 1.0
"""Time limit of one repeated call, seconds."""
_FIRST_S = 80.0
"""Time after which the first repetition starts no further call, seconds."""
_AHEAD_S = 40 * 86_400 + 5 * 3_600 + 1_234
"""Distance of the second repetition's clock, seconds."""


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
        self._names: dict[types.CodeType, tuple[str, str, Any]] = {}
        self._is_changed: dict[types.CodeType, bool] = {}
        self._seen: dict[tuple[str, str, str, str], None] = {}
        self._counts: dict[tuple[str, str], int] = {}
        self._frame: types.FrameType | None = None
        self._call = ("", "", "", "")
        self._touched = False

    def pytest_runtest_call(self) -> None:
        """Start recording right before the test is called."""
        self._names = self._functions()
        self._frame = None
        sys.setprofile(self._profile)

    def pytest_runtest_teardown(self) -> None:
        """Stop recording."""
        sys.setprofile(None)

    def pytest_sessionfinish(self) -> None:
        """Write the calls."""
        keys = ("module", "function", "arguments", "keywords")
        with open(self._output, "w", encoding="ascii") as file:  # noqa: PTH123
            file.writelines(json.dumps(dict(zip(keys, call))) + "\n" for call in self._seen)  # noqa: B905

    def _functions(self) -> dict[types.CodeType, tuple[str, str, Any]]:
        """Return code → shortest public name and object of the project's functions.

        Code of several functions, e.g. of a decorator's wrapper, is left out.
        """
        modules = [
            (name, module)
            for name, module in list(sys.modules.items())
            if self._is_product(_attribute(module, "__file__")) and _is_public(*name.split("."))
        ]
        names: dict[types.CodeType, tuple[str, str, Any]] = {}
        shared: set[types.CodeType] = set()
        for name, module in sorted(modules, key=lambda pair: (pair[0].count("."), pair[0])):
            for attribute, value in list(vars(module).items()):
                function = value if type(value) is types.FunctionType else _attribute(value, "__wrapped__")
                if type(function) is types.FunctionType and _is_public(attribute):
                    known = names.setdefault(function.__code__, (name, attribute, function))
                    if known[2] is not function:
                        shared.add(function.__code__)
        return {code: name for code, name in names.items() if code not in shared}

    def _is_product(self, path: object) -> bool:
        return type(path) is str and path.startswith(self._workdir) and path not in self._tests

    def _profile(self, frame: types.FrameType, event: str, _argument: object) -> None:
        if event == "return" and frame is self._frame:
            self._frame = None
            if self._touched:
                self._keep()
        elif event == "call":
            if self._frame is None:
                self._begin(frame)
            if self._frame is not None and not self._touched:
                self._touched = self._runs_changed(frame.f_code)

    def _begin(self, frame: types.FrameType) -> None:
        caller, known = frame.f_back, self._names.get(frame.f_code)
        if known is None or caller is None or caller.f_code.co_filename not in self._tests:
            return
        module, name, function = known
        if self._counts.get((module, name), 0) >= MAX_OF_FUNCTION or len(self._seen) >= MAX_CALLS:
            return
        try:
            positional, keywords = _arguments(frame, function)
            self._call = (module, name, render(positional), render(keywords))
        except NotLiteralError:
            return
        self._frame, self._touched = frame, self._everything

    def _keep(self) -> None:
        if self._call not in self._seen:
            self._seen[self._call] = None
            self._counts[self._call[:2]] = self._counts.get(self._call[:2], 0) + 1

    def _runs_changed(self, code: types.CodeType) -> bool:
        if code not in self._is_changed:
            lines = self._changed.get(code.co_filename, ())
            self._is_changed[code] = any(first <= code.co_firstlineno <= last for first, last in lines)
        return self._is_changed[code]


def _attribute(value: object, name: str) -> object:
    """Return an attribute; None if there is none, or reading it fails."""
    try:
        return getattr(value, name, None)
    except Exception:  # a lazy object may do anything when it is read
        return None


def _is_public(*names: str) -> bool:
    return not any(name.startswith("_") or name in ("test", "tests", "conftest") for name in names)


def _arguments(frame: types.FrameType, function: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call that begins; those equal to their default are left out.

    Parameters with a default become keywords: another solution may have them in another order.
    """
    code, values = frame.f_code, frame.f_locals
    names = code.co_varnames[: code.co_argcount]
    after = code.co_argcount + code.co_kwonlyargcount
    more = values[code.co_varnames[after]] if code.co_flags & 4 else ()
    defaults = dict(zip(reversed(names), reversed(function.__defaults__ or ())))  # noqa: B905
    by_position = len(names) if more else max(code.co_posonlyargcount, len(names) - len(defaults))
    positional = [values[name] for name in names[:by_position]]
    while (
        not more and positional and _is_same(positional[-1], defaults.get(names[len(positional) - 1], more))
    ):
        positional.pop()
    only = code.co_varnames[code.co_argcount : after]
    defaults.update(function.__kwdefaults__ or {})
    keywords = {
        name: values[name]
        for name in (*names[by_position:], *only)
        if not (name in defaults and _is_same(values[name], defaults[name]))
    }
    if code.co_flags & 8:
        keywords.update(values[code.co_varnames[after + bool(code.co_flags & 4)]])
    return (*positional, *more), keywords


def _is_same(value: object, default: object) -> bool:
    if value is default:
        return True
    try:
        return bool(render(value) == render(default))
    except NotLiteralError:
        return False


class _LateError(BaseException):
    """A call took too long."""


def repeat(settings: dict[str, Any], *, later: bool) -> None:
    """Call the functions and write the results that are literals.

    Args:
        settings: see the module.
        later: repeat in the opposite order, with a clock that is weeks ahead.
    """
    if later:
        _set_clock_ahead()
    sys.path += [str(Path(root).resolve()) for root in settings["roots"]]
    lines = Path(settings["calls"]).read_text(encoding="ascii").splitlines()
    calls = list(enumerate(map(json.loads, lines)))
    signal.signal(signal.SIGALRM, _late)
    end = time.monotonic() + _FIRST_S
    with open(settings["results"], "w", encoding="ascii", buffering=1) as file:  # noqa: PTH123
        for number, call in reversed(calls) if later else calls:
            if not later and time.monotonic() > end:
                break
            result = _result(call)
            if result is not None:
                value, iterator = result
                file.write(json.dumps({"number": number, "value": value, "iterator": iterator}) + "\n")


def _result(call: dict[str, str]) -> tuple[str, bool] | None:
    """Return source of a call's result, and whether it is an iterator; None if it fails or is no literal."""
    positional, keywords = ast.literal_eval(call["arguments"]), ast.literal_eval(call["keywords"])
    signal.setitimer(signal.ITIMER_REAL, _CALL_S)
    try:
        value = getattr(importlib.import_module(call["module"]), call["function"])(*positional, **keywords)
        iterator = hasattr(type(value), "__next__")
        if iterator:
            value = list(itertools.islice(value, _MAX_ITEMS + 1))
            if len(value) > _MAX_ITEMS:
                return None
        return render(value), iterator
    except (Exception, SystemExit, KeyboardInterrupt, _LateError):  # whatever the project's code raises
        return None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _late(*_: object) -> None:
    raise _LateError


def _set_clock_ahead() -> None:
    """Move the clock that Python code reads, so that results which depend on it differ."""
    import datetime

    class Later(datetime.datetime):
        """Date and time with a clock that is ahead."""

        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            return super().now(tz) + datetime.timedelta(seconds=_AHEAD_S)

        @classmethod
        def utcnow(cls) -> Any:
            return cls.now(datetime.timezone.utc).replace(tzinfo=None)  # noqa: UP017  Python 3.8

        @classmethod
        def today(cls) -> Any:
            return cls.now()

    class LaterDate(datetime.date):
        """Date with a clock that is ahead."""

        @classmethod
        def today(cls) -> Any:
            return super().today() + datetime.timedelta(seconds=_AHEAD_S)

    now, local, utc = time.time, time.localtime, time.gmtime
    module: Any = time
    module.time = lambda: now() + _AHEAD_S
    module.localtime = lambda seconds=None: local(module.time() if seconds is None else seconds)
    module.gmtime = lambda seconds=None: utc(module.time() if seconds is None else seconds)
    dates: Any = datetime
    dates.datetime, dates.date = Later, LaterDate


def pytest_configure(config: Any) -> None:
    """Register the recorder."""
    settings = json.loads((FOLDER / "trainyard_calls.json").read_text(encoding="utf-8"))
    config.pluginmanager.register(CallRecorder(settings))


def main(arguments: Sequence[str]) -> None:
    """Repeat the calls; ``later``: in the opposite order, with a clock that is weeks ahead."""
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    settings = json.loads((FOLDER / "trainyard_calls.json").read_text(encoding="utf-8"))
    repeat(settings, later="later" in arguments)
    os._exit(0)  # without exit handlers of the project


if __name__ == "__main__":
    main(sys.argv[1:])
