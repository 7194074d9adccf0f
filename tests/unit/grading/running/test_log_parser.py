"""Parser scripts of benchmarks: inputs, results, failures, and malformed descriptions in rows."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from engine.errors import DatasetError
from engine.grading.evidence import Evidence
from engine.grading.logs.parsers import printed_json
from engine.grading.running.log_parser import LogParser, Logs, without_parser
from engine.sandbox.base import ExecResult, SandboxSpec
from engine.testing.markers import END, START
from engine.testing.testrun import Record
from engine.types import TaskAnswer
from tests.fakes.memory_sandbox import MemorySandbox, printed, silent

SCRIPT, LOG, RESULT = "/w/parser.py", "/w/stdout.log", "/w/output.json"
GIVEN = {"script": SCRIPT, "command": "python3 parser.py", "logs": [LOG], "result": RESULT}


def answer(**given: Any) -> TaskAnswer:
    files = {SCRIPT: "print()", "/w/run.sh": "true"}
    return TaskAnswer(gold_patch="", test_files=files, metadata={"parser": {**GIVEN, **given}})


def parser() -> LogParser:
    log_parser = LogParser.of(answer())
    assert log_parser is not None
    return log_parser


def sandbox(files: dict[str, bytes], *, result: ExecResult | None = None) -> MemorySandbox:
    async def command(_command: str) -> ExecResult:
        return result or await silent(_command)

    return MemorySandbox(SandboxSpec(image="local:x"), 1, files, command)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"logs": "x"}, "metadata.parser"),
        ({"other": 1}, "metadata.parser"),
        ({"script": "/w/no.py"}, "metadata.parser.script"),
    ],
)
def test_a_malformed_parser_description_is_refused(given: dict[str, Any], field: str) -> None:
    with pytest.raises(DatasetError) as caught:
        LogParser.of(answer(**given))
    assert caught.value.field == field
    assert LogParser.of(TaskAnswer(gold_patch="")) is None


def test_the_parser_script_is_hidden_from_the_tests() -> None:
    assert without_parser(answer(), parser()) == {"/w/run.sh": b"true"}
    assert set(without_parser(answer(), None)) == {SCRIPT, "/w/run.sh"}


async def test_the_parser_result_follows_the_log_between_markers() -> None:
    logs = await parser().read_logs(sandbox({LOG: f"{START}\nran\n".encode()}))
    box = sandbox({RESULT: b'{"tests": []}'})
    parsed = await parser().parse(box, answer(), logs, Evidence(seconds=3.0))
    assert parsed.judged.startswith(f'{START}\n{{"tests": []}}\n{END}\n')
    assert parsed.log.count(START) == 1
    assert parsed.log.index("ran") < parsed.log.index(START)
    assert (parsed.problem, parsed.seconds, parsed.exit_code) == ("", 3.0, 0)
    assert await box.read_file(SCRIPT) == b"print()"
    assert await box.read_file(LOG) == f"{START}\nran\n".encode()


async def test_the_parser_reads_the_record_as_either_format_of_pytest_log() -> None:
    outcomes = {"a.py::t[1 2]": "XPASS", "b.py::t": "FAILED"}
    recorded = Evidence(record=Record(exit_status=1, altered=(), outcomes=outcomes), record_wanted=True)
    for pattern in (
        rb"^(?P<name>\S+::.+) (?P<status>PASSED|FAILED) \[",
        rb"^(?P<status>PASSED|FAILED) (?P<name>.+)",
    ):
        box: MemorySandbox

        async def command(_command: str) -> ExecResult:
            log = await box.read_file(LOG)  # noqa: B023
            lines = re.finditer(pattern, log, re.MULTILINE)  # noqa: B023
            tests = [{key: value.decode() for key, value in line.groupdict().items()} for line in lines]
            await box.write_file(RESULT, json.dumps({"tests": tests}).encode())  # noqa: B023
            return printed()

        box = MemorySandbox(SandboxSpec(image="local:x"), 1, {}, command)
        parsed = await parser().parse(box, answer(), Logs({LOG: b"ran\n"}), recorded)
        assert printed_json(parsed.record_parsed) == {"a.py::t[1 2]": "PASSED", "b.py::t": "FAILED"}
        assert printed_json(parsed.shown) == {}


async def test_failing_parsers_and_missing_logs_are_reported() -> None:
    logs = Logs({LOG: b"ran\n"})
    failed = ExecResult(exit_code=1, stdout=b"", stderr=b"KeyError: 3", timed_out=False, seconds=0.1)
    parsed = await parser().parse(sandbox({}, result=failed), answer(), logs, Evidence())
    assert parsed.problem == "the parser of the log ended with 1 and wrote no result: KeyError: 3"
    assert (parsed.judged, "ran" in parsed.log) == ("", True)
    missing = await parser().read_logs(sandbox({}))
    assert f"the tests' log {LOG} cannot be read" in missing.problem
    assert (await parser().parse(sandbox({}), answer(), missing, Evidence())).problem == missing.problem


def test_long_logs_keep_their_head_and_tail() -> None:
    text = Logs({LOG: b"a" * (6 << 20) + b"z" * (6 << 20)}).text
    assert len(text) < 11 << 20
    assert f"[{2 << 20} bytes of the middle were left out]" in text
