"""Parser scripts of benchmarks: their sandbox, their failures, and rows that describe them wrongly."""

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
    found = LogParser.of(answer())
    assert found is not None
    return found


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
def test_a_row_that_describes_no_parser_is_refused(given: dict[str, Any], field: str) -> None:
    with pytest.raises(DatasetError) as caught:
        LogParser.of(answer(**given))
    assert caught.value.field == field
    assert LogParser.of(TaskAnswer(gold_patch="")) is None


def test_the_tests_do_not_see_the_parser() -> None:
    assert without_parser(answer(), parser()) == {"/w/run.sh": b"true"}
    assert set(without_parser(answer(), None)) == {SCRIPT, "/w/run.sh"}


async def test_the_result_stands_between_the_markers_behind_the_log() -> None:
    logs = await parser().read_logs(sandbox({LOG: f"{START}\nran\n".encode()}))
    box = sandbox({RESULT: b'{"tests": []}'})
    found = await parser().parse(box, answer(), logs, Evidence(seconds=3.0))
    assert found.judged.startswith(f'{START}\n{{"tests": []}}\n{END}\n')
    assert found.log.count(START) == 1
    assert found.log.index("ran") < found.log.index(START)
    assert (found.problem, found.seconds, found.exit_code) == ("", 3.0, 0)
    assert await box.read_file(SCRIPT) == b"print()"
    assert await box.read_file(LOG) == f"{START}\nran\n".encode()


async def test_the_parser_reads_the_record_as_a_log_of_pytest_in_either_form() -> None:
    outcomes = {"a.py::t[1 2]": "XPASS", "b.py::t": "FAILED"}
    seen = Evidence(record=Record(exit_status=1, altered=(), outcomes=outcomes), record_wanted=True)
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
        found = await parser().parse(box, answer(), Logs({LOG: b"ran\n"}), seen)
        assert printed_json(found.record_parsed) == {"a.py::t[1 2]": "PASSED", "b.py::t": "FAILED"}
        assert printed_json(found.shown) == {}


async def test_a_parser_that_fails_and_a_log_that_is_gone_are_named() -> None:
    logs = Logs({LOG: b"ran\n"})
    failed = ExecResult(exit_code=1, stdout=b"", stderr=b"KeyError: 3", timed_out=False, seconds=0.1)
    found = await parser().parse(sandbox({}, result=failed), answer(), logs, Evidence())
    assert found.problem == "the parser of the log ended with 1 and wrote no result: KeyError: 3"
    assert (found.judged, "ran" in found.log) == ("", True)
    gone = await parser().read_logs(sandbox({}))
    assert f"the tests' log {LOG} cannot be read" in gone.problem
    assert (await parser().parse(sandbox({}), answer(), gone, Evidence())).problem == gone.problem


def test_of_a_long_log_head_and_tail_are_stored() -> None:
    text = Logs({LOG: b"a" * (6 << 20) + b"z" * (6 << 20)}).text
    assert len(text) < 11 << 20
    assert f"[{2 << 20} bytes of the middle were left out]" in text
