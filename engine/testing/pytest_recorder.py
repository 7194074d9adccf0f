"""Record the test outcomes that pytest observes, inside a sandbox. A plain script for Python ≥ 3.6.

Foreign test commands load it as the plugin ``-p trainyard_recorder``; ``pytest_driver`` and
``unittest_recorder`` use its parts. Each outcome is sent immediately to ``pytest_witness``, a process that
runs none of the project's code and has the key, together with the findings of ``pytest_guard``. Sent messages
cannot be revoked, and messages out of order are detected.

The recorder cannot be perfect, because the code under test shares its process; audits with mutated tests
detect the remaining manipulations.
"""

import hashlib
import os
import sys
import types
from _socket import AF_UNIX, SOCK_STREAM
from _socket import socket as Socket  # noqa: N812  the ``socket`` module costs milliseconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from engine.testing.pytest_guard import WATCHED, Guard
    from engine.testing.pytest_witness import ENDED, KEY_BYTES, TAG_CHARS
else:
    from trainyard_guard import WATCHED, Guard
    from trainyard_witness import ENDED, KEY_BYTES, TAG_CHARS

ALTERED = b"ALTERED the recorder was altered"
_LISTING = {"--version", "-V", "--help", "-h", "--collect-only", "--co", "--fixtures", "--markers"}
"""Options with which pytest runs no test."""


def channel(connection: "Socket", guard: Guard) -> "Callable[[bytes, str], None]":
    """Return the function that sends a message; waits until the witness has sent the session's key.

    The first message after an alteration of the recorder is preceded by a finding, because an altered guard
    finds nothing.

    Raises:
        OSError: the witness accepts no session of this process.
    """
    key = b""
    while len(key) < KEY_BYTES:
        part = connection.recv(KEY_BYTES - len(key))
        if not part:
            raise OSError("no session is wanted")
        key += part
    chain = hashlib.sha256(key)
    send_all, getpid, process = connection.sendall, os.getpid, os.getpid()
    is_altered, caller = alteration(guard), sys._getframe
    reported = False

    def send(word: bytes, text: str) -> None:
        nonlocal reported
        if getpid() != process:  # a forked test must not continue the digest
            return
        bodies = [word + b" " + text.encode("unicode_escape")]
        if not reported and is_altered(caller(1).f_code):
            reported = True
            bodies.insert(0, ALTERED)
        for body in bodies:
            chain.update(body)
            try:
                send_all(chain.hexdigest()[:TAG_CHARS].encode() + b" " + body + b"\n")
            except OSError:
                pass  # a session without an end is not counted

    return send


def alteration(guard: Guard) -> "Callable[[types.CodeType], bool]":
    """Return a function that checks whether the guard or the recorder was altered.

    Its argument is the code that sends a message: a recorder's method.
    """
    parts = [guard, guard.trust, guard._helpers, *guard._spaces]
    classes = [Recorder, *{type(part) for part in parts}]
    methods = [
        (vars(class_), name, value, value.__code__)
        for class_ in classes
        for name, value in list(vars(class_).items())
        if isinstance(value, types.FunctionType)
    ]
    senders = {code for names, _, _, code in methods if names["__module__"] == __name__}
    attributes = vars(guard)
    kept = {name: value for name, value in attributes.items() if name != "_items"}
    sizes = [(value, len(value)) for value in kept.values() if isinstance(value, (list, dict))]

    def is_altered(sender: types.CodeType) -> bool:
        return (
            sender not in senders
            or len(attributes) != len(kept) + 1
            or any(attributes.get(name) is not value for name, value in kept.items())
            or any(len(value) != size for value, size in sizes)
            or any(
                names.get(name) is not method or method.__code__ is not code
                for names, name, method, code in methods
            )
        )

    return is_altered


class Recorder:
    """A pytest plugin object that reports the outcome of every test.

    Args:
        guard: created before any code of the project ran.
        send: see ``channel``.
    """

    def __init__(self, guard: Guard, send: "Callable[[bytes, str], None]") -> None:
        self.guard = guard
        self._send = send
        self._config: Any = None
        self._told: set[str] = set()

    def pytest_load_initial_conftests(self, early_config: "Any") -> None:
        """Accept the hooks of installed plugins, before the project's hooks are registered."""
        if self._config is None:
            self.guard.accept_hooks(early_config)

    def pytest_configure(self, config: "Any") -> None:
        """Keep the configuration of the outermost session."""
        if self._config is None:
            self._config = config
            self.guard.trust.configure(config)

    def pytest_collectreport(self, report: "Any") -> None:
        """Record a file that could not be collected."""
        if report.failed:
            self.note(report.nodeid, "ERROR")

    def pytest_collection_finish(self, session: "Any") -> None:
        """Pass the collected tests to the guard."""
        if session.config is self._config:
            self.guard.collected(session.items)

    def pytest_runtest_makereport(self) -> None:
        """Check the runner directly after a test's code ran."""
        self.guard.check()

    def pytest_runtest_logreport(self, report: "Any") -> None:
        """Record one phase of one test."""
        self.guard.check_caller()
        expected = hasattr(report, "wasxfail")
        if report.failed:
            self.note(report.nodeid, "FAILED" if report.when == "call" else "ERROR")
        elif report.skipped:
            self.note(report.nodeid, "XFAIL" if expected else "SKIPPED")
        elif report.passed and report.when == "call":
            self.guard.check()
            self.note(report.nodeid, "XPASS" if expected else "PASSED")

    def note(self, node_id: str, outcome: str) -> None:
        """Send an outcome of a test."""
        as_printed = getattr(self._config, "cwd_relative_nodeid", str)
        self._send(outcome.encode(), as_printed(node_id))
        self._tell()

    def _tell(self) -> None:
        for word, findings in ((b"ALTERED", self.guard.found), (b"CHANGED", self.guard.changed)):
            for finding in sorted(findings - self._told):
                self._told.add(finding)
                self._send(word, finding)

    def finish(self, exit_status: int, report: str = "") -> None:
        """Send the end of the session.

        Args:
            report: the driver's report, on one line.
        """
        self.guard.check_caller()
        self.guard.check_all(self._config)
        self._tell()
        self._send(ENDED, ("%d %s" % (exit_status, report)).rstrip())


def begin(watched: "tuple[str, ...]") -> "Recorder | None":
    """Return the recorder of this process; None if the witness accepts none.

    Args:
        watched: see ``Guard``.
    """
    # A worker of pytest-xdist reports to the session that started it.
    if "PYTEST_XDIST_WORKER" in os.environ or not _LISTING.isdisjoint(sys.argv):
        return None
    connection = Socket(AF_UNIX, SOCK_STREAM)
    folder = os.path.dirname(os.path.abspath(__file__))
    try:
        connection.connect(os.path.join(folder, "witness"))
        with open(os.path.join(folder, "submission"), "rb") as file:
            workdir, *changed = map(os.fsdecode, file.read().split(b"\0"))
        guard = Guard(workdir, changed, watched)
        return Recorder(guard, channel(connection, guard))
    except OSError:
        return None


_RECORDER = begin(WATCHED) if "pytest" in sys.modules else None


def pytest_load_initial_conftests(early_config: "Any") -> None:
    """Pass the configuration on to the recorder, which is not yet registered as a plugin."""
    if _RECORDER is not None:
        _RECORDER.pytest_load_initial_conftests(early_config)


def pytest_configure(config: "Any") -> None:
    """Register the recorder if the witness accepts this session."""
    if _RECORDER is not None and _RECORDER._config is None:
        config.pluginmanager.register(_RECORDER)
        _RECORDER.pytest_configure(config)


def pytest_sessionfinish(session: "Any", exitstatus: int) -> None:
    """Send the end of the outermost session."""
    if _RECORDER is not None and _RECORDER._config is session.config:
        _RECORDER.finish(exitstatus)


def _ordered(function: "Any", order: str) -> None:
    """Mark a hook's order like ``pytest.hookimpl``, without importing pytest."""
    function.pytest_impl = {order: True}


_ordered(pytest_sessionfinish, "trylast")
_ordered(pytest_load_initial_conftests, "tryfirst")
_ordered(Recorder.pytest_load_initial_conftests, "tryfirst")
_ordered(Recorder.pytest_runtest_makereport, "tryfirst")
