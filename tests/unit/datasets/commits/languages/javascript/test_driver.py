"""The driver of tests: recorded output of runners becomes a JUnit report."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from engine.datasets.commits.languages.javascript.environments import drivers
from engine.datasets.commits.languages.javascript.language import node_version
from engine.errors import PreflightError
from engine.testing.testrun import parse_junit
from engine.types import TestOutcome

AVA = """TAP version 13
ok 1 - later # SKIP
not ok 2 - whenever # TODO
ok 3 - adds "x"
not ok 4 - compares
  ---
    name: AssertionError
    assertion: t.deepEqual()
    details:
      'Difference (- actual, + expected):': |2-
          {
        -   a: 1,
        +   a: 2,
          }
    message: ''
    at: 'ExecutionContext.deepEqual (file:///node_modules/ava/lib/assert.js:339:15)'
  ...
not ok 5 - throws
  ---
    name: AssertionError
    details:
      'Error thrown in test:': |-
        TypeError {
          message: 'boom',
        }
    message: Error thrown in test
    at: '{folder}/a.js:4:29'
  ...

1..5
"""
TAPE = """TAP version 13
# outer
# inner
ok 1 should be strictly equal
not ok 2 same
  ---
    operator: deepEqual
    expected: |-
      { a: 2 }
    actual: |-
      { a: 1 }
    at: Test.<anonymous> ({folder}/a.js:3:54)
    stack: |-
      Error: same
          at Test.assert [as _assert] (/node_modules/tape/lib/test.js:548:48)
  ...
ok 3 later
# other
ok 4 done
not ok 5 unknown # TODO

1..5
# tests 5
# pass  4
"""


def run(folder: Path, runner: str, output: str) -> tuple[dict[str, TestOutcome], str]:
    """Run the driver beside a runner that prints a recorded output; return outcomes and log."""
    try:
        node_version()
    except PreflightError as error:
        pytest.skip(str(error))
    modules = folder / "node_modules"
    (modules / ".trainyard").mkdir(parents=True)
    for name, content in drivers().items():
        (modules / ".trainyard" / name).write_bytes(content)
    (modules / runner).mkdir()
    (modules / runner / "package.json").write_text(json.dumps({"bin": {runner: "x.js"}, "version": "1.0.0"}))
    text = json.dumps(output.replace("{folder}", str(folder)))
    (modules / runner / "x.js").write_text(f"process.stdout.write({text}); process.exitCode = 1")
    node, report = shutil.which("node"), folder / "reports" / "junit.xml"
    command = [str(node), str(modules / ".trainyard" / "driver.cjs"), str(report), runner, "--", "a.js"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    cases = parse_junit(report.read_bytes())
    return {"::".join(address): case.outcome for address, case in cases.items()}, done.stdout


def test_points_of_ava_are_tests(tmp_path: Path) -> None:
    outcomes, log = run(tmp_path, "ava", AVA)
    assert outcomes == {
        "a.js::later": TestOutcome.SKIPPED,
        "a.js::whenever": TestOutcome.SKIPPED,
        'a.js::adds "x"': TestOutcome.PASSED,
        "a.js::compares": TestOutcome.FAILED,
        "a.js::throws": TestOutcome.FAILED,
    }
    assert "\na.js:0: AssertionError: { - a: 1, + a: 2, }\n" in log
    assert "\na.js:4: AssertionError: Error thrown in test: TypeError { message: 'boom', }\n" in log


def test_points_of_tape_are_assertions(tmp_path: Path) -> None:
    outcomes, log = run(tmp_path, "tape", TAPE)
    assert outcomes == {"a.js::inner": TestOutcome.FAILED, "a.js::other": TestOutcome.PASSED}
    assert "\na.js:3: AssertionError: same: { a: 1 } instead of { a: 2 }\n" in log


def test_a_crash_fails_the_last_test_of_tape(tmp_path: Path) -> None:
    (tmp_path / "crashed").mkdir()
    (tmp_path / "silent").mkdir()
    outcomes, log = run(tmp_path / "crashed", "tape", "# first\nok 1 a\n# second\nok 2 b\n")
    assert outcomes == {"a.js::first": TestOutcome.PASSED, "a.js::second": TestOutcome.FAILED}
    assert "a.js:0: Error: the process ended early\n" in log
    assert run(tmp_path / "silent", "tape", "TAP version 13\n")[0] == {}


@pytest.mark.parametrize("output", ["", "not ok", "ok " * 100_000, "\0\x1b[31m\ufffe\n" * 1000], ids=range(4))
def test_other_output_is_no_test(tmp_path: Path, output: str) -> None:
    assert run(tmp_path, "ava", output)[0] == {}
