"""Test runs in a sandbox with a signed report, shared by curation and grading.

The report is read from a file outside the workdir, never from the output; ``engine.testing.pytest_driver``
describes its signature.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import os
import posixpath
import re
import secrets
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from xml.parsers import expat

from engine.errors import ImageError
from engine.sandbox.base import ExecResult, Sandbox
from engine.testing.toolchain import DRIVER, MOUNT, runner_scripts
from engine.types import TestOutcome

TEST_ENVIRONMENT: Mapping[str, str] = {
    "PYTHONPATH": MOUNT,
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
}
LOG_BYTES = 10 << 20
"""Maximum size of a test log, bytes per stream; head and tail are kept, the omitted part is counted."""
REPORT_BYTES = 64 << 20
"""Maximum size of the driver's report, bytes."""
_CHUNK_BYTES = 1 << 18
_PASSED = frozenset({"PASSED", "XPASS", "XFAIL", "SKIPPED"})
SEVERITY = (
    TestOutcome.PASSED, TestOutcome.XPASS, TestOutcome.XFAIL, TestOutcome.SKIPPED, TestOutcome.FAILED,
    TestOutcome.ERROR,
)  # fmt: skip
_WORDS = {outcome.upper().encode(): outcome.upper() for outcome in SEVERITY}
"""Outcome words of records, as bytes → as strings."""
_RANKS = {outcome.upper(): rank for rank, outcome in enumerate(SEVERITY)}


@dataclass(frozen=True, slots=True, kw_only=True)
class TestCase:
    """One ``testcase`` element of a JUnit report."""

    __test__ = False
    address: tuple[str, str]
    """``classname`` and ``name``."""
    outcome: TestOutcome
    seconds: float
    exception: str
    """Class of the raised exception; empty when the test passed or it is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TestRun:
    """Results of one run of tests."""

    __test__ = False
    cases: Mapping[tuple[str, str], TestCase] = field(default_factory=dict)
    ids: tuple[str, ...] = ()
    """Node ids in execution order."""
    lines: Mapping[str, Mapping[str, Sequence[int]]] = field(default_factory=dict)
    """Node id → file → executed lines; only for a traced run."""
    timed_out: bool = False
    problem: str = ""
    """Reason why there is no report; empty when there is one."""
    forged: bool = False
    """Evidence of a forged report."""
    signs: tuple[str, ...] = ()
    """Changes to the test runner, and tests whose outcomes the recorder does not confirm."""
    data_signs: tuple[str, ...] = ()
    """Changes to constants of test files."""
    log: str = ""
    seconds: float = 0.0

    def case(self, node_id: str) -> TestCase:
        """Return the case of a test; ``missing`` when the test was not reported."""
        address = junit_address(node_id)
        missing = TestCase(address=address, outcome=TestOutcome.MISSING, seconds=0.0, exception="")
        return self.cases.get(address, missing)

    def outcomes(self, node_ids: Iterable[str]) -> dict[str, TestOutcome]:
        """Return node id → outcome."""
        return {node_id: self.case(node_id).outcome for node_id in node_ids}


def driver_command(tests: Sequence[str], roots: Sequence[str], *, trace_roots: Sequence[str] = ()) -> str:
    """Return the shell command that runs ``tests``; ``{junit}`` stands for the report's path.

    Args:
        tests: node ids, files, ``@file`` or further options of pytest.
        roots: import roots of the code under test, relative to the workdir.
        trace_roots: record executed lines of these folders.
    """
    parts = ["python3", "-S", "-P", "-B", DRIVER, "--junit", "{junit}"]
    parts += [part for root in roots for part in ("--root", root)]
    if trace_roots:
        parts.append("--trace")
    parts += [part for root in trace_roots for part in ("--trace-root", root)]
    return " ".join(part if part == "{junit}" else shlex.quote(part) for part in [*parts, "--", *tests])


async def run_tests(
    sandbox: Sandbox, command: str, *, timeout_s: float, changed: Iterable[str] | None = None
) -> TestRun:
    """Run a test command (see ``driver_command``) in the sandbox's workdir and read its report.

    Args:
        changed: paths, relative to the workdir, that the tested submission changed; code of other files may
            change the test runner. None if unknown.

    Raises:
        SandboxError: the sandbox failed; a failing, hanging or vanishing test process is a result.
        ImageError: the image's test tools have another version and report format.
    """
    secret = secrets.token_hex(16)
    report = f"/tmp/trainyard-{secrets.token_hex(8)}.json"  # noqa: S108  inside the sandbox
    result = await sandbox.exec(
        command.replace("{junit}", report),
        timeout_s=timeout_s,
        env=TEST_ENVIRONMENT,
        stdin=secret.encode()
        + b"\n"
        + (b"" if changed is None else submission(sandbox.spec.workdir, changed)),
        output_cap=LOG_BYTES,
    )
    log = log_text(result)
    if result.timed_out:
        return TestRun(
            timed_out=True, problem="the tests hit their deadline", log=log, seconds=result.seconds
        )
    try:
        data = await sandbox.read_file(report, max_bytes=REPORT_BYTES)
    except OSError:
        problem = f"the test process ended without a report (exit code {result.exit_code})"
        return TestRun(problem=problem, log=log, seconds=result.seconds)
    except ValueError:
        problem = f"the tests' report is larger than {REPORT_BYTES} bytes: their messages are too long"
        return TestRun(problem=problem, log=log, seconds=result.seconds)
    try:
        return await asyncio.to_thread(_read_report, data, secret, log, result.seconds)
    except (ValueError, KeyError) as error:
        if await _has_other_tools(sandbox):
            raise ImageError(
                f"image '{sandbox.spec.image}' has test tools of another version with another report format "
                f"({error}): start the run again, or rebuild its dataset"
            ) from error
        problem = f"the test runner's report was damaged while it ran: {error}"
        return TestRun(forged=True, problem=problem, log=log, seconds=result.seconds)


def submission(workdir: str, changed: Iterable[str]) -> bytes:
    """Encode a submission for pytest's recorders: the workdir and the files that it changed.

    Args:
        changed: paths relative to the workdir.
    """
    return b"\0".join(map(os.fsencode, [workdir, *(posixpath.join(workdir, path) for path in changed)]))


async def _has_other_tools(sandbox: Sandbox) -> bool:
    """Return whether the image's toolchain, which is mounted read-only, has another version."""
    scripts = runner_scripts()
    try:
        return scripts != {name: await sandbox.read_file(f"{MOUNT}/{name}") for name in scripts}
    except OSError:
        return True


def log_text(result: ExecResult) -> str:
    """Return the output of a command, with a last line that counts the omitted part."""
    text = (result.stdout + result.stderr).decode("utf-8", "replace")
    if not result.dropped_bytes:
        return text
    return f"{text}\n[{result.dropped_bytes} bytes of the middle were left out]\n"


def _read_report(data: bytes, secret: str, log: str, seconds: float) -> TestRun:
    signature, _, payload = data.partition(b"\n")
    expected = hmac.new(secret.encode(), payload, hashlib.sha256).hexdigest()
    if not hmac.compare_digest(signature, expected.encode()):
        return TestRun(forged=True, problem="the report is not the test runner's", log=log, seconds=seconds)
    recorded, _, escaped = payload.partition(b"\n\n")
    record = read_record(recorded)
    report: dict[str, Any] = json.loads(escaped.decode("unicode_escape"))
    problem = "" if report["junit"] else f"the tests did not run (exit code {record.exit_status})"
    cases = parse_junit(report["junit"]) if report["junit"] else {}
    return TestRun(
        cases=cases,
        ids=tuple(report["ids"]),
        lines=report["lines"],
        signs=_signs(record, cases),
        data_signs=record.changed,
        problem=problem,
        log=log,
        seconds=seconds,
    )


def _signs(record: Record, cases: Mapping[tuple[str, str], TestCase]) -> tuple[str, ...]:
    """Return the recorder's findings, and the tests that passed only in the JUnit report."""
    passed: dict[tuple[str, str], bool] = {}
    for node_id, status in record.outcomes.items():
        address = junit_address(node_id)
        passed[address] = passed.get(address, True) and status in _PASSED
    claimed = (address for address, case in cases.items() if case.outcome is TestOutcome.PASSED)
    unconfirmed = [
        f"{'.'.join(address)} did not pass" for address in claimed if not passed.get(address, False)
    ]
    return (*record.altered, *unconfirmed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Record of pytest sessions, sent by ``pytest_recorder`` and signed by ``pytest_witness``."""

    exit_status: int
    """-1 if a session did not end."""
    altered: tuple[str, ...]
    """Changes to the test runner."""
    outcomes: Mapping[str, str]
    """Node id → PASSED, FAILED, ERROR, SKIPPED, XFAIL or XPASS."""
    changed: tuple[str, ...] = ()
    """Changes to constants of test files."""


def read_record(payload: bytes) -> Record:
    """Parse the verified record of one session. Raises ValueError if it is malformed.

    A test may have an outcome per phase; the worst counts.

    Parsing is line by line: a million tests take a second or two, without blocking other threads.
    """
    status, *lines = payload.split(b"\n")
    findings: dict[bytes, list[str]] = {b"ALTERED": [], b"CHANGED": []}
    outcomes: dict[str, str] = {}
    for line in lines:
        word, _, escaped = line.partition(b" ")
        name = escaped.decode("unicode_escape")
        if word in _WORDS:
            outcomes[name] = max(outcomes.get(name, _WORDS[word]), _WORDS[word], key=_RANKS.__getitem__)
        elif word in findings:
            findings[word].append(name)
        else:
            raise ValueError(f"not a line of a record: {line[:100]!r}")
    altered, changed = map(tuple, findings.values())
    return Record(exit_status=int(status), altered=altered, outcomes=outcomes, changed=changed)


def junit_address(node_id: str) -> tuple[str, str]:
    """Return the ``classname`` and ``name`` under which pytest reports a node id.

    ``tests/test_a.py::TestX::test_y[a::b]`` → ``("tests.test_a.TestX", "test_y[a::b]")``.
    """
    path, bracket, parameters = node_id.partition("[")
    names = path.split("::")
    names[0] = re.sub(r"\.py$", "", names[0].replace("/", "."))
    names[-1] += bracket + parameters
    return ".".join(names[:-1]), _escaped(names[-1])


def parse_junit(xml: str | bytes) -> dict[tuple[str, str], TestCase]:
    """Return the cases of a JUnit report by address; of several entries for one test, the worst counts.

    Raises:
        ValueError: the text is not XML, or declares entities, which may grow without bounds.
    """
    reader = _JunitReader()
    # A string is encoded as UTF-8 here, whatever encoding it declares.
    parser = expat.ParserCreate("utf-8" if isinstance(xml, str) else None)
    parser.StartElementHandler, parser.EndElementHandler = reader.start, reader.end
    parser.EntityDeclHandler = _refuse_entity
    data = memoryview(xml.encode("utf-8", "replace") if isinstance(xml, str) else xml)
    try:
        for start in range(0, len(data), _CHUNK_BYTES):  # other threads run between chunks
            parser.Parse(data[start : start + _CHUNK_BYTES], False)
        parser.Parse(b"", True)
    except expat.ExpatError as error:
        raise ValueError(f"no JUnit report: {error}") from None
    return reader.cases


def _refuse_entity(*_declaration: object) -> None:
    raise ValueError("no JUnit report: it declares entities")


class _JunitReader:
    """Parser target that collects ``testcase`` elements; elements below their children are ignored."""

    def __init__(self) -> None:
        self.cases: dict[tuple[str, str], TestCase] = {}
        self._depth = 0
        self._case: TestCase | None = None
        self._case_depth = 0

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        self._depth += 1
        if tag == "testcase":
            self._keep()
            self._case, self._case_depth = _case(attributes), self._depth
        elif self._case is not None and self._depth == self._case_depth + 1:
            self._case = _ended(self._case, tag, attributes)

    def end(self, tag: str) -> None:
        if tag == "testcase":
            self._keep()
        self._depth -= 1

    def _keep(self) -> None:
        case, self._case = self._case, None
        if case is None:
            return
        known = self.cases.get(case.address)
        if known is None or SEVERITY.index(case.outcome) > SEVERITY.index(known.outcome):
            self.cases[case.address] = case


def _case(attributes: Mapping[str, str]) -> TestCase:
    return TestCase(
        address=(attributes.get("classname", ""), attributes.get("name", "")),
        outcome=TestOutcome.PASSED,
        seconds=float(attributes.get("time", "0") or 0),
        exception="",
    )


def _ended(case: TestCase, tag: str, attributes: Mapping[str, str]) -> TestCase:
    """Return the case updated from a child element; irrelevant elements leave it unchanged."""
    if tag == "skipped":
        expected = attributes.get("type") == "pytest.xfail"
        return replace(case, outcome=TestOutcome.XFAIL if expected else TestOutcome.SKIPPED)
    outcome = {"failure": TestOutcome.FAILED, "error": TestOutcome.ERROR}.get(tag)
    if outcome is None:
        return case
    return replace(case, outcome=outcome, exception=_exception(attributes.get("message", "")))


def _exception(message: str) -> str:
    """Return the class name at the start of a failure's message."""
    message = re.sub(r'^failed on (?:setup|teardown) with "', "", message)
    if message.startswith("assert "):
        return "AssertionError"
    match = re.match(r"([A-Za-z_][\w.]*)(?::|\"?\s*$|\"?\n)", message)
    return match[1].rsplit(".", 1)[-1] if match else ""


def _escaped(name: str) -> str:
    """Escape characters that XML cannot represent, as pytest does."""
    return re.sub(
        r"[^\t\n\r\x20-\x7e\x80-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]",
        lambda match: f"#x{ord(match[0]):02X}" if ord(match[0]) <= 0xFF else f"#x{ord(match[0]):04X}",
        name,
    )
