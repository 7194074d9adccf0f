"""Replacement of ``unittest`` commands by the recorder."""

from __future__ import annotations

import pytest

from engine.grading.running.unittest_commands import with_recorded_unittest
from engine.types import GradeRule, TaskAnswer

RECORDER = "/r/trainyard_unittest.py"


def answer(command: str, rule: GradeRule = GradeRule.EXIT_CODE, **files: str) -> TaskAnswer:
    named = {f"/tests/{name}.sh": text for name, text in files.items()}
    return TaskAnswer(gold_patch="", test_command=command, grade_rule=rule, test_files=named)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("python3 -m unittest -v tests.test_a", f"python3 {RECORDER} -v tests.test_a"),
        (
            "cd x && /opt/e/bin/python -B -W ignore -m unittest",
            f"cd x && /opt/e/bin/python -B -W ignore {RECORDER}",
        ),
        ("A=1 python3.11 -I -m unittest discover; true", f"A=1 python3.11 -I {RECORDER} discover; true"),
        ("cat <<'EOF'\npython -m unittest\nEOF\n", ""),
        ("python3.6 -m unittest a", f"python3.6 {RECORDER} a"),
        ("python2 -m unittest a", ""),
        ("/usr/bin/python3.5 -m unittest a", ""),
        ("python -m unittest2 a", ""),
        ("python -m unittest.mock", ""),
        ("python -m coverage run -m unittest", ""),
        ("python run.py -m unittest", ""),
    ],
)
def test_unittest_commands_are_replaced_by_the_recorder(before: str, after: str) -> None:
    script = f"set -e\n{before}\n"
    assert with_recorded_unittest(answer(script), "/r").test_command == f"set -e\n{after or before}\n"
    assert (with_recorded_unittest(answer(script), "/r") == answer(script)) is (not after)


def test_unittest_commands_in_row_scripts_are_replaced() -> None:
    changed = with_recorded_unittest(
        answer("bash /tests/test.sh", GradeRule.REWARD_FILE, test="python -m unittest x"), "/r"
    )
    assert changed.test_files == {"/tests/test.sh": f"python {RECORDER} x"}


def test_rows_graded_by_names_in_logs_stay_unchanged() -> None:
    row = answer("python -m unittest x", GradeRule.F2P_P2P)
    assert with_recorded_unittest(row, "/r") is row
