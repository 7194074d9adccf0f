"""Runs pytest inside a sandbox and signs its report. A plain script: standard library and pytest only.

It is copied with its recorder into the toolchain folder, which sandboxes see read-only, and started as
``python3 -S -P -B DRIVER --junit PATH [options] NODE_ID…`` in the workdir with a secret on stdin.

- The code under test comes last on ``sys.path``: it cannot shadow pytest or the standard library.
- The project's pytest configuration is ignored, so a patch cannot configure the runner.
- The report is written outside the workdir with an HMAC over it. A process that ends early, or code
  that writes a report of its own, leaves no valid one.
- Beside pytest's JUnit report it holds what ``pytest_recorder`` saw, and which functions
  of the runner were replaced while the tests ran.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

TOOLCHAIN = Path(__file__).resolve().parent
MAX_TRACED_CALLS = 60
"""Calls of one function in one test after which its lines are no longer recorded."""


class Tracer:
    """Records which lines of the package every test executes."""

    def __init__(self, roots: list[str]) -> None:
        self.prefixes = tuple(str(Path(root).resolve()) + os.sep for root in roots)
        self.lines: dict[str, dict[str, list[int]]] = {}
        self._codes: dict[types.CodeType, tuple[set[int], list[int]] | None] = {}

    def pytest_runtest_logstart(self) -> None:
        """Forget the last test and start to record."""
        self._codes = {}
        sys.settrace(self._call)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Stop and keep what the test executed."""
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
    """Keeps the node ids in the order they ran."""

    def __init__(self) -> None:
        self.ids: list[str] = []

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Remember one test."""
        self.ids.append(nodeid)


def run(options: argparse.Namespace, secret: bytes) -> int:
    """Run the tests, write the signed report and return pytest's exit code."""
    here = str(Path.cwd())
    trusted = [path for path in sys.path if path and not path.startswith((here, str(TOOLCHAIN)))]
    sys.path[:] = [str(TOOLCHAIN), *trusted]
    import pytest
    from trainyard_recorder import (  # type: ignore[import-not-found]
        WATCHED,
        Guard,
        Recorder,
        Seal,
    )

    for name in WATCHED:
        with contextlib.suppress(ImportError):  # not every version has all
            importlib.import_module(name)
    seal, encode = Seal(secret), json.JSONEncoder().encode
    del secret
    roots = [str(Path(root).resolve()) for root in options.root]
    sys.path += roots
    os.environ["PYTHONPATH"] = os.pathsep.join([*roots, str(TOOLCHAIN)])
    private = Path(tempfile.mkdtemp(prefix="trainyard-"))
    tracer, collector, recorder = Tracer(options.trace_root), Collector(), Recorder(Guard(here, strict=True))
    arguments = [
        "-q", "--tb=line", "-p", "no:cacheprovider", "-p", "no:faulthandler", "--import-mode=append",
        f"--rootdir={Path.cwd()}", "-c", str(TOOLCHAIN / "pytest.ini"),
        f"--basetemp={private / 'tmp'}", f"--junitxml={private / 'report.xml'}", *options.tests,
    ]  # fmt: skip
    plugins = [collector, recorder, tracer] if options.trace else [collector, recorder]
    code = int(pytest.main(arguments, plugins=plugins))
    report = private / "report.xml"
    body = report.read_bytes() if report.exists() else b""
    envelope = {"exit_code": code, "ids": collector.ids, "lines": tracer.lines}
    record = recorder.payload(code).decode()
    payload = encode({**envelope, "record": record, "junit": body.decode("utf-8", "replace")}).encode()
    Path(options.junit).write_bytes(seal.sign(payload) + b"\n" + payload)
    return code


def main() -> None:
    """Run the driver; exit without running exit handlers of the code under test."""
    parser = argparse.ArgumentParser(description="Run tests and sign the report.")
    parser.add_argument("--junit", required=True, help="where to write the report")
    parser.add_argument("--root", action="append", default=[], help="import root of the code under test")
    parser.add_argument("--trace", action="store_true", help="record executed lines per test")
    parser.add_argument("--trace-root", action="append", default=[], help="folder whose lines are recorded")
    parser.add_argument("tests", nargs="*", help="node ids, or @file")
    options = parser.parse_args()
    sys.argv = ["pytest"]
    code = 1
    try:
        code = run(options, sys.stdin.buffer.readline().strip())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
