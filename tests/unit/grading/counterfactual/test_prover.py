"""Test files that may be made false: those that the gold patch leaves alone."""

from __future__ import annotations

from engine.grading.counterfactual.prover import without_changed
from engine.patches.diff import diff_texts


def test_files_that_the_gold_patch_changes_stay_the_submissions_own() -> None:
    patch = diff_texts("django/test/cases.py", "a\n", "b\n") + diff_texts("tests/a.py", "a\n", "b\n")
    files = {
        "django/test/cases.py": b"1",
        "/testbed/tests/a.py": b"2",
        "tests/b.py": b"3",
        "/tests/a.py": b"4",
    }
    assert without_changed(files, patch, "/testbed") == {"tests/b.py": b"3", "/tests/a.py": b"4"}
