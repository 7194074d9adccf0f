"""Run pytest inside a sandbox and sign its report. A plain script: standard library and pytest only.

It is copied with the recorder's scripts into the toolchain folder, which sandboxes mount read-only. The
command is ``python3 -S -P -B DRIVER --junit PATH [options] NODE_ID…`` in the workdir. The first line of stdin
is a secret; the workdir and the files that the submission changed may follow, separated by null bytes.

- Two processes: the child runs pytest; the parent has the secret, receives the messages of
  ``pytest_recorder`` and writes the report with an HMAC over it. The child can read neither the parent's
  memory nor its descriptors.
- The code under test comes last on ``sys.path``: it cannot shadow pytest or the standard library.
- The project's pytest configuration is ignored, so a patch cannot configure the runner.
- The report is written outside the workdir. If a process ends early, or code under test writes a report
  itself, there is no valid report.
- The report contains pytest's JUnit report, the recorded outcomes, and the findings of ``pytest_guard``.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import select
import sys
import tempfile
import traceback
import types
from _socket import socketpair
from pathlib import Path
from typing import Any

TOOLCHAIN = Path(__file__).resolve().parent
MAX_TRACED_CALLS = 60
"""Calls of one function in one test after which its lines are no longer recorded."""

_PATIENCE_MS = 20
"""Interval at which the parent checks whether the child has died."""


class Tracer:
    """Plugin that records the package's lines executed by each test."""

    def __init__(self, roots: list[str]) -> None:
        self.prefixes = tuple(str(Path(root).resolve()) + os.sep for root in roots)
        self.lines: dict[str, dict[str, list[int]]] = {}
        self._codes: dict[types.CodeType, tuple[set[int], list[int]] | None] = {}

    def pytest_runtest_logstart(self) -> None:
        """Discard the last test's data and start recording."""
        self._codes = {}
        sys.settrace(self._call)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Stop recording and keep the lines that the test executed."""
        sys.settrace(None)
        files: dict[str, set[int]] = {}
        for code, seen in self._codes.items():
            if seen is not None:
                path = os.path.relpath(code.co_filename, Path.cwd())
                files.setdefault(path, set()).update(seen[0])
        self.lines[nodeid] = {path: sorted(lines) for path, lines in files.items()}

    def _call(self, frame: types.FrameType, _event: str, _arg: object) -> Any:
        code = frame.f_code
        if code not in self._codes:
            self._codes[code] = (set(), [0]) if code.co_filename.startswith(self.prefixes) else None
        seen = self._codes[code]
        if seen is None or seen[1][0] > MAX_TRACED_CALLS:
            return None
        seen[1][0] += 1
        add = seen[0].add

        def local(frame: types.FrameType, event: str, _arg: object) -> Any:
            if event == "line":
                add(frame.f_lineno)
            return local

        return local


class Collector:
    """Plugin that collects the node ids in execution order."""

    def __init__(self) -> None:
        self.ids: list[str] = []

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Add the node id of a test."""
        self.ids.append(nodeid)


def run(options: argparse.Namespace, connection: Any, submission: bytes) -> int:
    """Run the tests, send the report to the witness and return pytest's exit code."""
    here = str(Path.cwd())
    from trainyard_guard import Guard  # type: ignore[import-not-found]
    from trainyard_recorder import Recorder, channel  # type: ignore[import-not-found]

    roots = [str(Path(root).resolve()) for root in options.root]
    private = Path(tempfile.mkdtemp(prefix="trainyard-"))
    encode = json.JSONEncoder().encode
    changed = list(map(os.fsdecode, submission.split(b"\0")[1:])) if submission else None
    guard = Guard(here, changed)
    recorder = Recorder(guard, channel(connection, guard))
    import pytest

    gc.freeze()  # excludes pytest's own modules from its five collections at exit
    sys.path += roots
    os.environ["PYTHONPATH"] = os.pathsep.join([*roots, str(TOOLCHAIN)])
    tracer, collector = Tracer(options.trace_root), Collector()
    arguments = [
        "-q", "--tb=line", "-p", "no:cacheprovider", "-p", "no:faulthandler", "--import-mode=append",
        f"--rootdir={Path.cwd()}", "-c", str(TOOLCHAIN / "pytest.ini"),
        f"--basetemp={private / 'tmp'}", f"--junitxml={private / 'report.xml'}", *options.tests,
    ]  # fmt: skip
    plugins = [collector, recorder, tracer] if options.trace else [collector, recorder]
    code = int(pytest.main(arguments, plugins=plugins))
    report = private / "report.xml"
    junit = report.read_bytes().decode("utf-8", "replace") if report.exists() else ""
    sys.stdout.flush()  # the parent ends both processes when it has the report
    sys.stderr.flush()
    recorder.finish(code, encode({"ids": collector.ids, "lines": tracer.lines, "junit": junit}))
    return code


def witness(session: Any, child: int) -> int:
    """Receive the recorder's messages until the session or the child ends; return the exit code."""
    poller = select.poll()
    poller.register(session.connection.fileno(), select.POLLIN)
    while not session.ending:
        if poller.poll(_PATIENCE_MS) and session.receive():
            continue
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            session.drain()
            return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    return int(session.ending.partition(b" ")[0])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Run tests and sign the report.")
    parser.add_argument("--junit", required=True, help="where to write the report")
    parser.add_argument("--root", action="append", default=[], help="import root of the code under test")
    parser.add_argument("--trace", action="store_true", help="record executed lines per test")
    parser.add_argument("--trace-root", action="append", default=[], help="folder whose lines are recorded")
    parser.add_argument("tests", nargs="*", help="node ids, or @file")
    return parser.parse_args()


def _child(options: argparse.Namespace, connection: Any, reading: int) -> None:
    """Run the tests; exit without running exit handlers of the code under test."""
    code = 1
    try:
        empty = os.open(os.devnull, os.O_RDONLY)
        os.dup2(empty, 0)  # stdin has the secret
        os.close(empty)
        with os.fdopen(reading, "rb") as pipe:
            submission = pipe.read()
        code = run(options, connection, submission)
    except Exception:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """Run the driver in two processes; see the module's docstring."""
    options = _options()
    sys.argv = ["pytest"]
    here = str(Path.cwd())
    trusted = [path for path in sys.path if path and not path.startswith((here, str(TOOLCHAIN)))]
    sys.path[:] = [str(TOOLCHAIN), *trusted]
    from trainyard_witness import Seal, Session, protect  # type: ignore[import-not-found]

    ours, theirs = socketpair()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        ours.close()
        os.close(writing)
        _child(options, theirs, reading)
    protect()
    theirs.close()
    os.close(reading)
    key, _, submission = sys.stdin.buffer.read().partition(b"\n")
    with os.fdopen(writing, "wb") as pipe:
        pipe.write(submission)
    seal, session = Seal(key.strip()), Session(ours)
    code = witness(session, child)
    if session.ending:
        report = session.ending.partition(b" ")[2]
        Path(options.junit).write_bytes(seal.sign(session.payload() + b"\n\n" + report))
    os._exit(code)


if __name__ == "__main__":
    main()
