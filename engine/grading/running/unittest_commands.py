"""Replacement of scripts' ``unittest`` commands by commands that run it under its recorder."""

from __future__ import annotations

import re
from dataclasses import replace

from engine.grading.running.placement import commands
from engine.types import GradeRule, TaskAnswer

_UNITTEST = re.compile(
    r"(\bpython(?!2|3\.[0-5](?!\d))[\w.]*"
    r"[\"']?(?:[ \t]+-(?!m)\S+(?:[ \t]+[\w:]+)?)*?)[ \t]+-m[ \t]+unittest(?![\w.])"
)
_WITHOUT_NAMES = frozenset({GradeRule.EXIT_CODE, GradeRule.REWARD_FILE})
"""Rules that take test names from records only; others read the names that ``unittest`` prints."""


def with_recorded_unittest(answer: TaskAnswer, folder: str) -> TaskAnswer:
    """Return an answer with recorded sessions of ``unittest``; the same answer without any.

    Args:
        folder: folder of the recorder.
    """
    if answer.grade_rule not in _WITHOUT_NAMES:
        return answer
    scripts = {path: text for path, text in answer.test_files.items() if path.endswith(".sh")}
    changed = {path: _recorded(text, folder) for path, text in scripts.items()}
    command = _recorded(answer.test_command, folder)
    if command == answer.test_command and changed == scripts:
        return answer
    return replace(answer, test_command=command, test_files={**answer.test_files, **changed})


def _recorded(script: str, folder: str) -> str:
    lines = script.split("\n")
    for first, _, text in commands(script):  # here-documents are no commands
        if text.startswith("#"):
            continue
        for number in range(first, first + text.count("\n") + 1):
            lines[number] = _UNITTEST.sub(rf"\1 {folder}/trainyard_unittest.py", lines[number])
    return "\n".join(lines)
