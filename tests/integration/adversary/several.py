"""The toy task with several tests that a solution fixes, each with a constant of its own."""

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
CONTENT = "from toy.numbers import clamp, mean, positives\n" + "".join(
    f"\n\ndef {name}():\n    {body}\n" for name, body in {**_OTHERS, **FIXED}.items()
)


SCRIPT = "tests/check.py"
OPTIONAL = "tests/test_optional.py"


def with_ignored_test(content: str) -> Callable[[TaskRow], TaskRow]:
    """Return the function that adds tests to a task in script, whose outcomes its script ignores."""

    def task(row: TaskRow) -> TaskRow:
        scripts = {
            path: _ignoring(text) for path, text in row.answer.test_files.items() if path.endswith(".sh")
        }
        command = row.answer.test_command
        answer = replace(
            row.answer,
            test_files={**row.answer.test_files, **scripts, OPTIONAL: content},
            test_command=command if scripts else _ignoring(command),
        )
        return replace(row, answer=answer)

    return task


def _ignoring(script: str) -> str:
    """Return a script in which a second call of pytest, after the first, decides nothing."""
    lines = script.split("\n")
    at = next(number for number, line in enumerate(lines) if "-m pytest" in line)
    ignored = f"{lines[at].replace(FILE, OPTIONAL)} || true"
    return "\n".join([*lines[:at], ignored, *lines[at:]])


def with_plain_script(row: TaskRow) -> TaskRow:
    """Return the task whose tests a program of its own runs: nothing records them, its exit code decides."""
    calls = "".join(f"    {name}()\n" for name in (*_OTHERS, *FIXED))
    answer = replace(
        row.answer,
        test_files={SCRIPT: f"{CONTENT}\n\nif __name__ == '__main__':\n{calls}    print('passed')\n"},
        test_command=f"#!/bin/bash\nPYTHONPATH=. python3 {SCRIPT}\n",
        grade_rule=GradeRule.EXIT_CODE,
        fail_to_pass=(),
        pass_to_pass=(),
    )
    return replace(row, answer=answer)


def with_helper(row: TaskRow) -> TaskRow:
    """Return the task of ``with_several_tests`` in which a helper of the file compares in one of them."""
    row = with_several_tests(row)
    direct, through = FIXED["test_far_above"], "same(clamp(400, 0, 60), 60)"
    content = f"{CONTENT.replace(direct, through)}\n\ndef same(a, b):\n    assert a == b\n"
    return replace(row, answer=replace(row.answer, test_files={**row.answer.test_files, FILE: content}))


def with_several_tests(row: TaskRow) -> TaskRow:
    """Return the task with these tests, which are hidden from agents."""
    named = row.answer.grade_rule is GradeRule.F2P_P2P
    answer = replace(
        row.answer,
        test_files={**row.answer.test_files, FILE: CONTENT},
        fail_to_pass=tuple(f"{FILE}::{name}" for name in FIXED) if named else (),
        pass_to_pass=tuple(f"{FILE}::{name}" for name in _OTHERS) if named else (),
    )
    return replace(row, answer=answer)
