"""Patches as text: creation, splitting, filtering by path."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from engine.datasets.paths import is_test_path
from engine.patches.diff import diff_texts
from engine.patches.sections import count_changed_lines, keep_files, patch_hash, split_patch


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a\nb\nc\n", "a\nX\nc\n"),
        ("a\nb", "a\nc"),
        ("a\r\nb\r\n", "a\r\nc\r\n"),
        ("x\x0c\u2028y\nb\n", "x\x0c\u2028y\nc\n"),
    ],
)
def test_git_applies_diffs_of_texts(tmp_path: Path, before: str, after: str) -> None:
    file = tmp_path / "f.py"
    file.write_bytes(before.encode())
    patch = diff_texts("f.py", before, after)
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=patch.encode(), check=True)
    assert file.read_bytes() == after.encode()
    assert count_changed_lines(patch) == 2


def test_parts_keep_their_text_and_name_every_path() -> None:
    header = "diff --git a/old.py b/tests/new.py\nsimilarity index 100%\n"
    rename = header + "rename from old.py\nrename to tests/new.py\n"
    patch = diff_texts("a.py", "x\n", "y\n") + rename
    parts = split_patch(patch)
    assert [part.paths for part in parts] == [("a.py",), ("old.py", "tests/new.py")]
    assert "".join(part.text for part in parts) == patch
    kept, dropped = keep_files(patch, lambda path: not is_test_path(path))
    assert (kept, dropped) == (patch.removesuffix(rename), ["old.py", "tests/new.py"]), "one name is enough"


def test_a_file_without_a_git_header_is_a_separate_part() -> None:
    first, bare = (
        diff_texts("a.py", "x\n", "y\n"),
        "--- a/conftest.py\n+++ b/conftest.py\n@@ -0,0 +1 @@\n+x\n",
    )
    for patch in (first + bare, bare + first):
        kept, dropped = keep_files(patch, lambda path: not is_test_path(path))
        assert (kept, dropped) == (first, ["conftest.py"])


def test_the_patch_hash_ignores_blob_hashes_but_not_content() -> None:
    patch = diff_texts("a.py", "x\n", "y\n")
    with_index = patch.replace("--- a", "index 1234567..89abcde 100644\n--- a")
    assert patch_hash(with_index) == patch_hash(patch + "\n")
    assert patch_hash(patch) != patch_hash(diff_texts("a.py", "x\n", "z\n"))
