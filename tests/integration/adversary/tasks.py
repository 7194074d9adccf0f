"""Tasks derived from the toy task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from engine.types import GradeRule, TaskRow

FILE = "tests/test_numbers.py"
FIXED = {
    "test_above": "assert clamp(12, 0, 10) == 10",
    "test_far_above": "assert clamp(400, 0, 60) == 60",
    "test_inside": "assert clamp(5, 0, 10) == 5",
}
_OTHERS = {
    "test_mean": "assert mean([1, 2, 6]) == 3",
    "test_positives": "assert positives([-1, 0, 2]) == [2]",
}
_OPTIONAL = "tests/test_optional.py"
NEVER_PASSED = "def test_passes():\n    pass\n\n\ndef test_fails():\n    raise ValueError\n"
_DATA = {"tests/data/wanted.json": "[10, 5]", "tests/data/wanted": "60"}
_WITH_DATA = """import json
from pathlib import Path

DATA = Path(__file__).parent / "data"


def wanted():
    return json.loads((DATA / "wanted.json").read_text())


"""
_UNITTEST = """import unittest

from toy.numbers import clamp, mean, positives


class NumbersTest(unittest.TestCase):
    def test_a_mean(self):
        self.assertEqual(mean([1, 2, 6]), 3)

    def test_b_positives(self):
        self.assertEqual(positives([-1, 0, 2]), [2])

    def test_c_above(self):
        self.assertEqual(clamp(12, 0, 10), 10)

    def test_d_inside(self):
        for value in (5, 6):
            with self.subTest(value=value):
                self.assertEqual(clamp(value, 0, 10), value)
        self.assertEqual(clamp(7, 0, 10), 7)

    @unittest.expectedFailure
    def test_e_wrong(self):
        self.assertEqual(mean([1, 1]), 2)
"""


def content(**bodies: str) -> str:
    """Return the test file of ``with_several_tests`` with some test bodies replaced."""
    functions = {**_OTHERS, **FIXED, **bodies}
    tests = "".join(f"\n\ndef {name}():\n    {body}\n" for name, body in functions.items())
    return f"from toy.numbers import clamp, mean, positives\n{tests}"


def with_files(files: dict[str, str]) -> Callable[[TaskRow], TaskRow]:
    """Return a function that adds test files to a task."""

    def task(row: TaskRow) -> TaskRow:
        return replace(row, answer=replace(row.answer, test_files={**row.answer.test_files, **files}))

    return task


def with_tests(files: dict[str, str]) -> Callable[[TaskRow], TaskRow]:
    """Return a function that adds several tests to a task and then replaces files of them."""
    return lambda row: with_files(files)(with_several_tests(row))


def with_several_tests(row: TaskRow) -> TaskRow:
    """Return the task with several tests that a solution fixes, each with its own constant."""
    named = row.answer.grade_rule is GradeRule.F2P_P2P
    answer = replace(
        row.answer,
        test_files={**row.answer.test_files, FILE: content()},
        fail_to_pass=tuple(f"{FILE}::{name}" for name in FIXED) if named else (),
        pass_to_pass=tuple(f"{FILE}::{name}" for name in _OTHERS) if named else (),
    )
    return replace(row, answer=answer)


def with_data(row: TaskRow) -> TaskRow:
    """Return the task whose tests read the expected values from files."""
    tests = _WITH_DATA + content(
        test_above="assert clamp(12, 0, 10) == wanted()[0]",
        test_far_above='assert str(clamp(400, 0, 60)) == (DATA / "wanted").read_text()',
        test_inside="assert clamp(5, 0, 10) == wanted()[1]",
    )
    return with_tests({FILE: tests, **_DATA})(row)


def with_unittest(row: TaskRow) -> TaskRow:
    """Return the task graded by the exit code of ``unittest``."""
    answer = replace(
        row.answer,
        test_files={FILE: _UNITTEST},
        test_command="#!/bin/bash\npython3 -m unittest -v tests.test_numbers\n",
        grade_rule=GradeRule.EXIT_CODE,
        fail_to_pass=(),
        pass_to_pass=(),
    )
    return replace(row, answer=answer)


def with_ignored_test(tests: str) -> Callable[[TaskRow], TaskRow]:
    """Return a function that adds tests whose outcomes the test script ignores."""

    def task(row: TaskRow) -> TaskRow:
        command = row.answer.test_command
        scripts = {
            path: _prepend(text) for path, text in row.answer.test_files.items() if path.endswith(".sh")
        }
        row = replace(row, answer=replace(row.answer, test_command=command if scripts else _prepend(command)))
        return with_files({**scripts, _OPTIONAL: tests})(row)

    return task


def _prepend(script: str) -> str:
    """Return a script that runs the optional tests first and ignores their exit code."""
    lines = script.split("\n")
    index = next(number for number, line in enumerate(lines) if "-m pytest" in line)
    ignored = f"{lines[index].replace(FILE, _OPTIONAL)} || true"
    return "\n".join([*lines[:index], ignored, *lines[index:]])
