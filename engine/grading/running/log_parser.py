"""Log parsers that a benchmark ships as scripts; they run in a fresh sandbox, out of the tests' reach.

    tests in a sandbox ── all processes dead ── logs read as files ──▶ fresh sandbox: parser + logs ── result

If pytest was recorded, the parser also reads a log rendered from the record: so the record's tests have the
same names as the result's.

A row names one in ``metadata["parser"]``: ``script`` (one of its test files), ``command`` (a line of bash),
``logs`` (files that its test command writes) and ``result`` (the file that the parser writes).
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as validated

from engine.datasets.answer_files import contents_of
from engine.errors import DatasetError
from engine.grading.evidence import Evidence, summary_log, verbose_log
from engine.grading.logs.parsers import printed_json
from engine.grading.running.marked_logs import published
from engine.grading.running.placement import place_files
from engine.sandbox.base import Sandbox
from engine.testing.testrun import LOG_BYTES, Record
from engine.types import TaskAnswer

_PARSER_S = 120.0
LIFETIME_S = 3 * _PARSER_S
"""Time for the parser's runs over the logs and over the record in two forms, seconds."""
_MAX_BYTES = 64 << 20
_SAID_CHARS = 300


@dataclass(frozen=True, slots=True)
class Logs:
    """Logs of a run of the tests, as input of its parser."""

    files: Mapping[str, bytes]
    problem: str = ""
    """Reason why one of them cannot be parsed; empty when all can."""

    @property
    def text(self) -> str:
        """Return all logs in their order; long ones are reduced to head and tail."""
        return "".join(_shortened(content).decode("utf-8", "replace") for content in self.files.values())


@validated(frozen=True, config=ConfigDict(extra="forbid"))
class LogParser:
    """A parser script of a row."""

    script: str
    """Absolute path of the script, which is one of the row's test files."""
    command: str
    logs: tuple[str, ...]
    result: str

    @classmethod
    def of(cls, answer: TaskAnswer) -> LogParser | None:
        """Return the parser of a row; None without one. Raises DatasetError if it is malformed."""
        given = answer.metadata.get("parser")
        if given is None:
            return None
        try:
            parser = TypeAdapter(cls).validate_python(given)
        except ValidationError as error:
            raise DatasetError(f"not a parser: {error.errors()[0]['msg']}", field="metadata.parser") from None
        if parser.script not in answer.test_files:
            raise DatasetError(f"{parser.script} is not among the test files", field="metadata.parser.script")
        return parser

    async def read_logs(self, box: Sandbox) -> Logs:
        """Read the logs after a run of the tests. Raises SandboxError when the sandbox failed."""
        files: dict[str, bytes] = {}
        for path in self.logs:
            try:
                files[path] = await box.read_file(path, max_bytes=_MAX_BYTES)
            except (OSError, ValueError) as error:
                return Logs(files, f"the tests' log {path} cannot be read: {error}")
        return Logs(files)

    async def parse(self, box: Sandbox, answer: TaskAnswer, logs: Logs, evidence: Evidence) -> Evidence:
        """Run the parser in a sandbox that contains nothing of the submission.

        Returns:
            The evidence with the parser's result between the markers, after the logs.

        Raises:
            SandboxError: the sandbox failed.
        """
        if logs.problem:
            return _without_result(evidence, logs, logs.problem)
        shown, problem = await self._parsed(box, answer, logs.files)
        if problem:
            return _without_result(evidence, logs, problem)
        return replace(
            evidence,
            log=published(shown, 0, logs.text),
            judged=published(shown, 0),
            shown=shown,
            exit_code=0,
            record_parsed=await self._parsed_record(box, answer, evidence.record),
        )

    async def _parsed_record(self, box: Sandbox, answer: TaskAnswer, record: Record | None) -> str:
        """Return the parser's result for a log rendered from pytest's record."""
        if record is None or not record.outcomes or not self.logs:
            return ""
        first, *others = self.logs
        for log in (verbose_log(record.outcomes), summary_log(record.outcomes)):
            files = {first: log.encode("utf-8", "surrogateescape"), **dict.fromkeys(others, b"")}
            shown, _ = await self._parsed(box, answer, files)
            if printed_json(shown):
                return shown
        return ""

    async def _parsed(self, box: Sandbox, answer: TaskAnswer, logs: Mapping[str, bytes]) -> tuple[str, str]:
        """Run the parser over logs; return its result, and the reason why there is none."""
        await place_files(box, {self.script: contents_of(answer)[self.script], **logs})
        command = f"rm -f {shlex.quote(self.result)}; {self.command}"
        run = await box.exec(["/bin/bash", "-c", command], timeout_s=_PARSER_S)
        try:
            result = await box.read_file(self.result, max_bytes=_MAX_BYTES)
        except (OSError, ValueError) as error:
            output = run.stderr.decode("utf-8", "replace").strip()[-_SAID_CHARS:]
            ending = "did not end in time" if run.timed_out else f"ended with {run.exit_code}"
            return "", f"the parser of the log {ending} and wrote no result: {output or error}"
        return result.decode("utf-8", "replace"), ""


def without_parser(answer: TaskAnswer, parser: LogParser | None) -> dict[str, bytes]:
    """Return path → content of the test files that the tests themselves need."""
    scripts: Sequence[str] = () if parser is None else (parser.script,)
    return {path: content for path, content in contents_of(answer).items() if path not in scripts}


def _without_result(evidence: Evidence, logs: Logs, problem: str) -> Evidence:
    return replace(evidence, log=published("", None, logs.text), judged="", shown="", problem=problem)


def _shortened(content: bytes) -> bytes:
    if len(content) <= LOG_BYTES:
        return content
    half, left_out = LOG_BYTES // 2, len(content) - LOG_BYTES
    return b"%b\n[%d bytes of the middle were left out]\n%b" % (content[:half], left_out, content[-half:])
