"""Reversed patches undo every kind of change that git writes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import PatchError
from engine.patches.apply import apply_patch
from engine.patches.diff import diff_trees
from engine.patches.reverse import reverse_patch
from engine.patches.trees import FileState

Tree = dict[str, FileState]
HEADER = "diff --git a/a b/a\n--- a/a\n+++ b/a\n"
ENDLESS = f"@@ -1,{'9' * 5000} +1,{'9' * 5000} @@\n-a\n+b\n"
TEXTS = st.lists(st.sampled_from(["a", "b", "c", "-x", "+y", "--- d", "@@ e", "\\ f", ""]), max_size=8)


def state(lines: list[str], *, end: bool = True, mode: int = 0o100644) -> FileState:
    text = "\n".join(lines) + ("\n" if end and lines else "")
    return FileState(mode, text.encode())


def undone(before: Tree, after: Tree) -> Tree:
    changed, deleted = apply_patch(after, reverse_patch(diff_trees(before, after)))
    return {path: file for path, file in {**after, **changed}.items() if path not in deleted}


def contents(tree: Tree) -> dict[str, tuple[int, bytes]]:
    return {path: (file.git_mode, file.data) for path, file in tree.items()}


@given(old=TEXTS, new=TEXTS, ends=st.tuples(st.booleans(), st.booleans()))
@settings(max_examples=40, deadline=None)
def test_random_changes_of_a_text_are_undone(old: list[str], new: list[str], ends: tuple[bool, bool]) -> None:
    before, after = {"p/a b.py": state(old, end=ends[0])}, {"p/a b.py": state(new, end=ends[1])}
    if before != after:
        assert contents(undone(before, after)) == contents(before)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"new.py": state(["a"])}),
        ({"old.py": state(["a"], end=False)}, {}),
        ({"run.sh": state(["a"])}, {"run.sh": state(["a"], mode=0o100755)}),
        (
            {"one.py": state(["a", "b"]), "two.py": state(["c"])},
            {"one.py": state(["b"]), "two.py": state(["c", "d"])},
        ),
        ({"ä.py": state(["a"])}, {"ä.py": state(["b"])}),
    ],
)
def test_new_deleted_and_changed_files_are_undone(before: Tree, after: Tree) -> None:
    assert contents(undone(before, after)) == contents(before)


def test_renames_are_undone() -> None:
    patch = (
        "diff --git a/old.py b/new.py\nsimilarity index 50%\nrename from old.py\nrename to new.py\n"
        "index 1111111..2222222 100644\n--- a/old.py\n+++ b/new.py\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n"
    )
    changed, deleted = apply_patch({"new.py": state(["a", "c"])}, reverse_patch(patch))
    assert (contents(changed), deleted) == (contents({"old.py": state(["a", "b"])}), ("new.py",))


@pytest.mark.parametrize(
    "patch",
    [
        "",
        "some text\n",
        HEADER + ENDLESS,
        HEADER + "@@ -1,2 +1 @@\n-a\n+b\n",
        "diff --git a/x b/x\nindex 1..2\nGIT binary patch\nliteral 1\n",
    ],
)
def test_irreversible_patches_are_refused(patch: str) -> None:
    with pytest.raises(PatchError):
        reverse_patch(patch)
