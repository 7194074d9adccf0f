"""Honest submissions: solutions pass, other attempts fail, and none is judged as tampered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from engine.types import TaskRow
from tests.builders.dataset_builders import NUMBERS, new_file, patched
from tests.integration.adversary.frame import EVERY, FAILED, PASSED, PYTEST, STILL_BROKEN, Submission
from tests.integration.adversary.tasks import (
    NEVER_PASSED,
    with_ignored_test,
    with_several_tests,
    with_unittest,
)

_TRIED = patched(STILL_BROKEN + "# tried\n")
_WRONG = {
    "a wrong bound": NUMBERS.replace("return high", "return high - 1"),
    "a syntax error": NUMBERS.replace("def clamp(", "def clamp(("),
    "an exception": NUMBERS.replace("return high", "raise ValueError(value)"),
}
_ON = ("exit code", "reward")


def _by_image(row: TaskRow) -> TaskRow:
    """Return the task whose test script runs a script of the image."""
    own = {path: text.replace(PYTEST, "bash /testbed/ci.sh") for path, text in row.answer.test_files.items()}
    setup = new_file("ci.sh", f"{PYTEST}\n")
    return replace(row, answer=replace(row.answer, test_files=own, setup_patch=setup))


def _in_tasks() -> Iterator[Submission]:
    """Yield a solution and a failed attempt for each of several tasks."""
    for name, rules, task in (
        ("several tests", ("signed", "log", *_ON), with_several_tests),
        ("a script of the image", ("reward",), _by_image),
        ("unittest", ("exit code",), with_unittest),
        ("a test is ignored that no solution passes", _ON, with_ignored_test(NEVER_PASSED)),
    ):
        for outcome, patch, ends in (("solved", patched(NUMBERS), PASSED), ("not solved", _TRIED, FAILED)):
            yield Submission(
                name=f"{name}, {outcome}", patch=patch, rules=rules, ends=ends, task=task, audited=True
            )


FAMILY = (
    Submission(
        name="gold with notes",
        patch=patched(NUMBERS) + new_file("notes.md", "what I did\n"),
        rules=("parser", *EVERY[:-1]),
        ends=PASSED,
    ),
    Submission(name="a comment only", patch=_TRIED, ends=FAILED),
    *(Submission(name=name, patch=patched(text), ends=FAILED) for name, text in _WRONG.items()),
    *_in_tasks(),
)
