"""Records what pytest really saw, inside a sandbox, and seals it. A plain script for Python ≥ 3.6.

``pytest_driver`` uses it, and as the plugin ``-p trainyard_recorder`` it rides along in test
commands that are not ours: a ``key`` file beside it is taken away before any code of the project runs, and at
the session's end ``record-<n>`` is written there, sealed with that key.

It cannot be perfect, because the code under test shares its process. It is made so that printing, exiting,
patching pytest, unittest, hmac or json, registering hooks and exchanging tests leave no valid record, or one
that says what was altered. To watch more: ``WATCHED`` and ``HOOKS``.
"""

import hashlib
import os
import re
import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

WATCHED = (
    "_pytest.runner", "_pytest.reports", "_pytest.junitxml", "_pytest.main", "_pytest.python",
    "_pytest.unittest", "_pytest.outcomes", "_pytest.nodes", "_pytest.skipping", "_pytest.subtests",
    "_pytest.raises", "_pytest.python_api", "_pytest.recwarn", "_pytest.warnings",
    "_pytest.terminal", "_pytest.fixtures",
    "_pytest._code.code", "pluggy._hooks", "pluggy._callers", "pluggy._manager", "pluggy.hooks",
    "pluggy.callers", "pluggy.manager", "unittest.case", "unittest.result", "unittest.suite",
    "unittest.runner", "hmac",
)  # fmt: skip
HOOKS = (
    "pytest_pyfunc_call", "pytest_runtest_protocol", "pytest_runtestloop", "pytest_runtest_call",
    "pytest_runtest_setup", "pytest_runtest_teardown", "pytest_runtest_makereport",
    "pytest_runtest_logreport", "pytest_collection_modifyitems", "pytest_report_teststatus",
    "pytest_itemcollected", "pytest_sessionfinish", "pytest_pycollect_makeitem", "pytest_generate_tests",
    "pytest_deselected",
)  # fmt: skip
_SEVERITY = ("PASSED", "XPASS", "XFAIL", "SKIPPED", "FAILED", "ERROR")
_REPLACED = ("runtest", "setup", "teardown", "repr_failure", "runtestprotocol")
_INSTALLED = re.compile(r"[/\\](?:site-packages|dist-packages|lib[/\\]python\d)")
_TEST_FOLDERS = ("tests", "test", "r2e_tests")


class Seal:
    """HMAC-SHA256 out of hash objects that are ready before other code runs; the key itself is not kept.

    Args:
        key: at most 64 bytes.
    """

    def __init__(self, key: bytes) -> None:
        padded = bytearray(key.ljust(64, b"\0"))
        self._inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in padded))
        self._outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in padded))

    def sign(self, payload: bytes) -> bytes:
        """Return hexadecimal signature of ``payload``, as bytes."""
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(payload)
        outer.update(inner.digest())
        return outer.hexdigest().encode()


class Guard:
    """Notices functions of the test runner that the project's code exchanged.

    Args:
        workdir: the project; code there counts as the project's, unless it is a test or installed.
        strict: whether any exchange counts, whoever made it.
    """

    def __init__(self, workdir: str, strict: bool = False) -> None:
        self._root = os.path.realpath(workdir) + os.sep
        self._strict = strict
        self._before = _functions()
        self._codes: dict[int, tuple[Any, types.CodeType | None]] = {}

    def remember(self, items: "list[Any]") -> None:
        """Note the code of collected tests."""
        for item in items:
            self._codes[id(item)] = (item, _code_of(item))

    def altered(self, config: "Any" = None) -> "list[str]":
        """Return what was exchanged since the start, one short phrase each; sorted."""
        now = _functions()
        found = set()
        for name, before in self._before.items():
            if now.get(name) is not before and (self._strict or self._foreign(now.get(name))):
                found.add("%s was replaced" % name)
        for item, collected in self._codes.values():
            if any(name in vars(item) for name in _REPLACED) or _code_of(item) is not collected:
                found.add("the test %s was exchanged" % item.nodeid)
        for name in HOOKS if config is not None else ():
            hook = getattr(config.hook, name, None)
            for implementation in getattr(hook, "get_hookimpls", list)():
                function = getattr(implementation.function, "__func__", implementation.function)
                code = getattr(function, "__code__", None)
                if code is not None and self._foreign(code):
                    found.add("a hook %s was added" % name)
        return sorted(found)

    def _foreign(self, code: "types.CodeType | None") -> bool:
        """Return whether code is the project's, or came from no file, or is gone."""
        if code is None:
            return True
        path = os.path.realpath(code.co_filename)
        if not os.path.isfile(path):
            return True
        if not path.startswith(self._root) or _INSTALLED.search(path):
            return False
        parts = path[len(self._root) :].split(os.sep)
        name = parts[-1]
        return not (
            name in ("conftest.py", "trainyard_recorder.py")
            or name.startswith("test_")
            or name.endswith("_test.py")
            or any(part in _TEST_FOLDERS for part in parts[:-1])
        )


def _functions() -> "dict[str, types.CodeType]":
    found = {}
    for name in WATCHED:
        module = sys.modules.get(name)
        for key, value in list(vars(module).items()) if module else ():
            members = list(vars(value).items()) if isinstance(value, type) else [("", value)]
            for member, item in members:
                function = getattr(item, "__func__", getattr(item, "fget", item))
                if isinstance(function, types.FunctionType):
                    found[".".join(part for part in (name, key, member) if part)] = function.__code__
    return found


def _code_of(item: "Any") -> "types.CodeType | None":
    function = getattr(item, "obj", None)
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return code if isinstance(code, types.CodeType) else None


class Recorder:
    """A pytest plugin object that keeps the outcome of every test.

    Args:
        guard: asked for alterations at the end.
    """

    def __init__(self, guard: Guard) -> None:
        self.outcomes: dict[str, str] = {}
        """Node id → PASSED, FAILED, ERROR, SKIPPED, XFAIL or XPASS."""
        self._guard = guard
        self._config: Any = None

    def pytest_configure(self, config: "Any") -> None:
        """Keep the configuration."""
        self._config = config

    def pytest_collectreport(self, report: "Any") -> None:
        """Record a file that could not be collected."""
        if report.failed:
            self._note(report.nodeid, "ERROR")

    def pytest_collection_finish(self, session: "Any") -> None:
        """Note the tests."""
        self._guard.remember(session.items)

    def pytest_runtest_logreport(self, report: "Any") -> None:
        """Record one phase of one test."""
        expected = hasattr(report, "wasxfail")
        if report.failed:
            self._note(report.nodeid, "FAILED" if report.when == "call" else "ERROR")
        elif report.skipped:
            self._note(report.nodeid, "XFAIL" if expected else "SKIPPED")
        elif report.passed and report.when == "call":
            self._note(report.nodeid, "XPASS" if expected else "PASSED")

    def _note(self, node_id: str, outcome: str) -> None:
        known = self.outcomes.get(node_id, "PASSED")
        self.outcomes[node_id] = max(known, outcome, key=_SEVERITY.index)

    def payload(self, exit_status: int) -> bytes:
        """Exit status, then a line each for alterations and outcomes; names are escaped to plain ASCII."""
        altered = [("ALTERED", name) for name in self._guard.altered(self._config)]
        as_printed = getattr(self._config, "cwd_relative_nodeid", str)
        outcomes = [(outcome, as_printed(name)) for name, outcome in self.outcomes.items()]
        lines = [("%s %s" % (word, name)).encode("unicode_escape") for word, name in altered + outcomes]
        return b"\n".join([b"%d" % int(exit_status), *lines])


class _Sealed(Recorder):
    """The recorder of a foreign command: writes its sealed record when the session ends."""

    def __init__(self, guard: Guard, seal: Seal, path: str) -> None:
        super().__init__(guard)
        self._seal = seal
        self._path = path
        self._open, self._write, self._close = os.open, os.write, os.close
        self._process = os.getpid()

    def finish(self, exit_status: int) -> None:
        """Write the record, from the process that began it only."""
        if os.getpid() != self._process:
            return
        payload = self.payload(exit_status)
        fd = self._open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        view = memoryview(self._seal.sign(payload) + b"\n" + payload)
        while view:
            view = view[self._write(fd, view) :]
        self._close(fd)


def _take_key(folder: str) -> "tuple[int, bytes] | None":
    """Return the first unused key and its number; None when there is none (left)."""
    path = os.path.join(folder, "key")
    try:
        with open(path, "rb") as file:
            keys = file.read().split()
        os.unlink(path)
    except OSError:
        return None
    if len(keys) > 1:
        with open(path, "wb") as file:
            file.write(b"\n".join(keys[1:]))
    number, _, key = keys[0].partition(b":")
    return int(number), key


def _begin() -> "_Sealed | None":
    folder = os.path.dirname(os.path.abspath(__file__))
    # A worker of pytest-xdist reports to the session that started it.
    taken = None if "PYTEST_XDIST_WORKER" in os.environ else _take_key(folder)
    if taken is None:
        return None
    number, key = taken
    return _Sealed(Guard(os.getcwd()), Seal(key), os.path.join(folder, "record-%d" % number))


_RECORDER = _begin()


def pytest_configure(config: "Any") -> None:
    """Join in where a key was waiting."""
    if _RECORDER is not None:
        config.pluginmanager.register(_RECORDER)
        _RECORDER.pytest_configure(config)


def pytest_sessionfinish(exitstatus: int) -> None:
    """Seal what was seen."""
    if _RECORDER is not None:
        _RECORDER.finish(exitstatus)


setattr(pytest_sessionfinish, "pytest_impl", {"trylast": True})  # noqa: B010  what pytest.hookimpl does
