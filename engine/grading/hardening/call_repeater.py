"""Program that repeats calls in a sandbox: ``python3 trainyard_repeat.py SECONDS [later]``.

It reads the calls that ``call_recorder`` describes and writes what they return or raise, as lines
``{"number", "form", "value", "of_object"}``; a call without a result has only its number, one that was not
started has no line. ``of_object``: a method returned None; its object is described.

| form | source |
|---|---|
| `value` | a literal |
| `items` | list of the items of an iterator |
| `repr` | the text that ``repr`` returns |
| `attributes` | dict of the public attributes that tests name and that are literals |
| `raises` | text ``MODULE:NAME`` of an exception's class, raised by a statement of the project |

Standard library only; what it writes is not trusted, like the records.
"""

from __future__ import annotations

import ast
import dis
import functools
import importlib
import itertools
import json
import os
import re
import signal
import sys
import time
import types
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
if str(FOLDER) not in sys.path:
    sys.path.append(str(FOLDER))
from trainyard_literals import MAX_CHARS, NotLiteralError, render  # type: ignore[import-not-found]  # noqa: E402

_MAX_ITEMS, _MAX_ATTRIBUTES = 100, 20
"""Items of an iterator, and attributes of an object, that are part of a result."""
_CALL_S = 1.0
"""Time limit of one repeated call, seconds."""
_MAX_RESULTS = 3 << 20
"""Characters of results after which no further call is started."""
_AHEAD_S = 40 * 86_400 + 5 * 3_600 + 1_234
"""Distance of the second repetition's clock, seconds."""


class _LateError(BaseException):
    """A call took too long."""


def repeat(settings: dict[str, Any], seconds: float, *, later: bool) -> None:
    """Call the functions and write the results that can be described.

    Args:
        settings: see ``call_recorder``.
        seconds: time after which no further call is started.
        later: repeat in the opposite order, with a clock that is weeks ahead.
    """
    if later:
        _set_clock_ahead()
    sys.path += [str(Path(root).resolve()) for root in settings["roots"]]
    lines = Path(settings["calls"]).read_text(encoding="ascii").splitlines()
    calls = list(enumerate(map(json.loads, lines)))
    named = _named_attributes([Path(settings["workdir"], path) for path in settings["tests"]])
    signal.signal(signal.SIGALRM, _late)
    end, written = time.monotonic() + seconds, 0
    with open(settings["results"], "w", encoding="ascii", buffering=1) as file:  # noqa: PTH123
        for number, call in reversed(calls) if later else calls:
            if time.monotonic() > end or written > _MAX_RESULTS:
                break
            result = _result(call, settings["workdir"], named)
            written += file.write(json.dumps({"number": number, **result}) + "\n")


def _named_attributes(tests: Sequence[Path]) -> set[str]:
    """Return the public names that follow a dot in test files: what tests read is no detail of a solution."""
    return {
        name for test in tests for name in re.findall(r"\.([A-Za-z]\w*)", test.read_text(errors="replace"))
    }


def _result(call: dict[str, Any], workdir: str, named: Collection[str]) -> dict[str, Any]:
    """Return the described result of a call; empty if it has none."""
    signal.setitimer(signal.ITIMER_REAL, _CALL_S)
    try:
        owner: Any = importlib.import_module(call["module"])
        *earlier, last = call["steps"]
        for step in earlier:
            value = _taken(owner, step)
            owner = value if step[3] else owner
        try:
            value = _taken(owner, last)
        except Exception as error:
            name = _raised(error, workdir)
            return {"form": "raises", "value": render(name), "of_object": False} if name else {}
        of_object = value is None and bool(earlier)
        described = _described(owner if of_object else value, named)
        if described is None and of_object:
            of_object, described = False, ("value", "None")
        if described is None or value is NotImplemented:
            return {}
        return {"form": described[0], "value": described[1], "of_object": of_object}
    except (Exception, SystemExit, KeyboardInterrupt, _LateError):  # whatever the project's code raises
        return {}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _taken(owner: Any, step: Sequence[Any]) -> Any:
    """Call or read an attribute of an object and return the result."""
    name, arguments, keywords, _ = step
    value = functools.reduce(getattr, name.split("."), owner)
    return value(*ast.literal_eval(arguments), **ast.literal_eval(keywords)) if arguments else value


def _described(value: Any, named: Collection[str]) -> tuple[str, str] | None:
    """Return form and source of a value; None if it has no short description without addresses."""
    if hasattr(type(value), "__next__"):
        items = list(itertools.islice(value, _MAX_ITEMS + 1))
        return ("items", render(items)) if len(items) <= _MAX_ITEMS else None
    try:
        return "value", render(value)
    except NotLiteralError:
        pass
    own: Any = type(value).__repr__
    if own is not object.__repr__:
        text: Any = repr(value)
        if type(text) is str and len(text) <= MAX_CHARS and " at 0x" not in text:
            return "repr", render(text)
    present = getattr(value, "__dict__", {})  # empty where the class has __slots__
    attributes = {}
    for name in sorted(set(present).intersection(named))[:_MAX_ATTRIBUTES]:
        try:
            render(present[name])
        except NotLiteralError:
            continue
        attributes[name] = present[name]
    return ("attributes", render(attributes)) if attributes else None


def _raised(error: Exception, workdir: str) -> str:
    """Return ``MODULE:NAME`` of a raised class; '' if the project has no statement that raised it.

    An operation that merely fails on an odd input, such as an index, says nothing that a test may require.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or not trace.tb_frame.f_code.co_filename.startswith(workdir.rstrip("/") + "/"):
        return ""
    if trace.tb_frame.f_code.co_code[trace.tb_lasti] != dis.opmap["RAISE_VARARGS"]:
        return ""
    modules = [(name, value) for name, value in list(sys.modules.items()) if type(value) is types.ModuleType]
    modules.sort(key=lambda pair: (pair[0] != "builtins", pair[0].count("."), pair[0]))
    classes: Sequence[type] = type(error).__mro__
    for class_ in classes:
        if class_ in (Exception, AssertionError):
            return ""
        for name, module in modules:
            is_private = any(part.startswith("_") for part in name.split("."))
            if not is_private and vars(module).get(class_.__name__) is class_:
                return f"{name}:{class_.__name__}"
    return ""


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


def main(arguments: Sequence[str]) -> None:
    """Repeat the calls; ``later``: in the opposite order, with a clock that is weeks ahead."""
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    settings = json.loads((FOLDER / "trainyard_calls.json").read_text(encoding="utf-8"))
    repeat(settings, float(arguments[0]), later="later" in arguments)
    os._exit(0)  # without exit handlers of the project


if __name__ == "__main__":
    main(sys.argv[1:])
