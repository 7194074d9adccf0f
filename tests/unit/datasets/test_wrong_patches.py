"""Wrong patches: parts of a solution, and the solution with a fault."""

from __future__ import annotations

import pytest

from engine.datasets.wrong_patches import FAULT, PART, wrong_patches
from engine.errors import PatchError
from engine.patches.apply import apply_patch
from engine.patches.diff import diff_trees
from engine.patches.trees import FileState, Tree

BEFORE = """def first(items):
    return items[1]


def clamp(value, low, high):
    \"\"\"Clamp.\"\"\"
    if value < low:
        return high
    return value
"""
AFTER = """def first(items):
    return items[0]


def clamp(value, low, high):
    \"\"\"Return the nearest value of a range.\"\"\"
    if value < low:
        return low
    if value > high:
        return high
    return value
"""


def tree(**files: str) -> Tree:
    return {
        name.replace("__", "/") + ".py": FileState(0o100644, text.encode()) for name, text in files.items()
    }


def texts(before: Tree, patch: str) -> str:
    return "".join(state.data.decode() for state in apply_patch(before, patch).files.values())


def test_parts_leave_out_one_change_each_and_ignore_docstrings() -> None:
    before, after = tree(numbers=BEFORE), tree(numbers=AFTER)
    found = wrong_patches(before, diff_trees(before, after), limit=50, seed="a")
    parts = {wrong.detail: texts(before, wrong.patch) for wrong in found if wrong.kind == PART}
    assert "the solution without numbers.py:6" not in parts, "a docstring is no code"
    assert parts["the solution without numbers.py:2"] == AFTER.replace("items[0]", "items[1]")
    assert all(text != AFTER and text != BEFORE for text in parts.values())
    assert "only numbers.py:2 of the solution" in parts


def test_faults_are_in_changed_functions_with_changed_lines_first() -> None:
    other = "def untouched(a):\n    return a + 1\n\n\n"
    before, after = tree(numbers=other + BEFORE), tree(numbers=other + AFTER)
    found = wrong_patches(before, diff_trees(before, after), limit=200, seed="a")
    faults = [wrong for wrong in found if wrong.kind == FAULT]
    lines = [int(wrong.detail.split(":")[1]) for wrong in faults]
    assert "untouched" not in "".join(wrong.detail for wrong in faults)
    changed = {6, 10, 12, 13, 14}
    assert set(lines[: len(changed.intersection(lines))]) <= changed
    assert set(lines) - changed, "unchanged lines of changed functions are used too"
    assert len({wrong.patch for wrong in found}) == len(found)


def test_the_limit_is_kept_and_the_choice_is_repeatable() -> None:
    before, after = tree(numbers=BEFORE), tree(numbers=AFTER)
    solution = diff_trees(before, after)
    few = wrong_patches(before, solution, limit=4, seed="a")
    assert [wrong.kind for wrong in few] == [PART, FAULT, PART, FAULT]
    assert few == wrong_patches(before, solution, limit=4, seed="a")
    assert wrong_patches(before, solution, limit=0, seed="a") == []


def test_new_deleted_and_foreign_files_have_parts() -> None:
    before = {"old.js": FileState(0o100644, b"a\n"), "kept.js": FileState(0o100644, b"let a = 1\n")}
    after = {"new.js": FileState(0o100644, b"b\n"), "kept.js": FileState(0o100644, b"let a = 2\n")}
    found = wrong_patches(before, diff_trees(before, after), limit=50, seed="a")
    assert {wrong.kind for wrong in found} == {PART}
    changes = [apply_patch(before, wrong.patch) for wrong in found]
    assert any("new.js" not in change.files for change in changes)
    assert any(change.paths == ["kept.js"] for change in changes)
    assert {path for change in changes for path in change.deleted} == {"old.js"}
    assert all("old.js" not in change.files for change in changes)


def test_notes_tests_and_configuration_are_part_of_every_patch() -> None:
    notes = {name: FileState(0o100644, b"old\n") for name in ("CHANGES.md", "tests/test_f.py", "setup.cfg")}
    solved = {name: FileState(0o100644, b"new\n") for name in notes}
    before, after = {**tree(numbers=BEFORE), **notes}, {**tree(numbers=AFTER), **solved}
    found = wrong_patches(before, diff_trees(before, after), limit=100, seed="a")
    assert all(apply_patch(before, wrong.patch).files.keys() >= notes.keys() for wrong in found)
    assert all("numbers.py" in wrong.detail for wrong in found)
    assert wrong_patches(notes, diff_trees(notes, solved), limit=9, seed="a") == []


def test_the_task_itself_is_no_wrong_patch() -> None:
    broken = AFTER.replace("value > high", "value >= high")
    before = tree(numbers=broken)
    found = wrong_patches(before, diff_trees(before, tree(numbers=AFTER)), limit=200, seed="a")
    assert len(found) > 3
    assert all(texts(before, wrong.patch) not in ("", broken, AFTER) for wrong in found)


def test_a_solution_that_does_not_apply_is_refused() -> None:
    solution = diff_trees(tree(numbers=BEFORE), tree(numbers=AFTER))
    with pytest.raises(PatchError, match="does not apply"):
        wrong_patches(tree(numbers="other\n"), solution, limit=5, seed="a")
