"""Check of tasks before anything is graded."""

from __future__ import annotations

from engine.errors import DatasetError
from engine.grading.logs.parsers import find_parser
from engine.grading.rules import RULES
from engine.grading.running.log_parser import LogParser
from engine.testing.toolchain import DRIVER
from engine.types import GradeRule, TaskRow

_NEEDS_PARSER = frozenset({GradeRule.F2P_P2P, GradeRule.MULTI_SWE})


def check_gradable(row: TaskRow) -> None:
    """Check that patches for the task can be graded. Raises DatasetError with the reason."""
    task, answer = row.task.instance_id, row.answer
    if answer.grade_rule not in RULES:
        raise DatasetError(f"task {task}: unknown grade rule '{answer.grade_rule}'")
    if not answer.test_command:
        raise DatasetError(f"task {task} has no required tests or no test command")
    signed = DRIVER in answer.test_command
    if signed and answer.grade_rule is not GradeRule.F2P_P2P:
        raise DatasetError(f"task {task}: the driver's report is judged by {GradeRule.F2P_P2P} only")
    if answer.grade_rule is GradeRule.F2P_P2P and not answer.fail_to_pass:
        raise DatasetError(f"task {task} has no required tests or no test command")
    if answer.grade_rule is GradeRule.MAP_EQUAL and not answer.expected:
        raise DatasetError(f"task {task} has no map of expected outcomes")
    if answer.grade_rule in _NEEDS_PARSER and not (signed or answer.log_parser):
        raise DatasetError(f"task {task} names no parser for its test log")
    if answer.log_parser:
        find_parser(answer.log_parser)
    if LogParser.of(answer) is not None and answer.own_box:
        raise DatasetError(f"task {task}: a parser in a fresh sandbox and 'own_box' exclude each other")
