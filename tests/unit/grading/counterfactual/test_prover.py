"""Test files that may be made false: those of which no submission brings its own version."""

from __future__ import annotations

from engine.grading.counterfactual.prover import protected
from engine.patches.diff import diff_texts
from engine.types import GradeRule, Task, TaskAnswer, TaskRow


def row_of(test_patch: str = "") -> TaskRow:
    task = Task(id="t", instance_id="t", repo="r", base_commit="c", image="i", problem_statement="p")
    answer = TaskAnswer(
        grade_rule=GradeRule.EXIT_CODE, test_command="true", gold_patch="", test_patch=test_patch
    )
    return TaskRow(task=task, answer=answer, split="train")


def test_files_that_the_gold_patch_changes_stay_the_submissions_own() -> None:
    patch = diff_texts("django/test/cases.py", "a\n", "b\n") + diff_texts("tests/a.py", "a\n", "b\n")
    files = {
        "django/test/cases.py": b"1",
        "/testbed/tests/a.py": b"2",
        "tests/b.py": b"3",
        "/tests/a.py": b"4",
    }
    assert protected(files, row_of(), patch) == {"tests/b.py": b"3", "/tests/a.py": b"4"}


def test_code_with_tests_in_it_stays_the_submissions_own() -> None:
    files = {"src/lib.rs": b"1", "src/words/tests.rs": b"2", "pkg/words.go": b"3", "checks/words.go": b"4"}
    patch = diff_texts("checks/words.go", "a\n", "b\n")
    assert protected(files, row_of(test_patch=patch), "") == {
        "src/words/tests.rs": b"2",
        "checks/words.go": b"4",
    }
