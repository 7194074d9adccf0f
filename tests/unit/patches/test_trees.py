"""Patches made on the host from file states, and applied to them."""

from __future__ import annotations

import random
import stat
import time
from pathlib import Path

import pytest

from engine.errors import PatchError
from engine.patches import trees
from engine.patches.apply import apply_patch, touched
from engine.patches.diff import diff_trees
from engine.patches.harness import named_paths
from engine.patches.trees import MAX_DEPTH, FileState
from tests.unit.patches.test_touched import some_tree

Files = dict[str, FileState]


def regular(data: bytes, mode: int = 0o644) -> FileState:
    return FileState(stat.S_IFREG | mode, data)


def link(target: str) -> FileState:
    return FileState(stat.S_IFLNK | 0o777, target.encode())


def applied(before: Files, patch: str) -> Files:
    changes = apply_patch({name: before[name] for name in touched(patch) if name in before}, patch)
    after = {**before, **changes.files}
    for name in changes.deleted:
        del after[name]
    return after


def same(left: Files, right: Files) -> bool:
    return left.keys() == right.keys() and all(left[name].same(right[name]) for name in left)


@pytest.mark.parametrize("seed", range(6))
def test_a_patch_turns_any_tree_into_any_other(seed: int) -> None:
    generator = random.Random(seed)
    before, after = some_tree(generator), some_tree(generator)
    patch = diff_trees(before, after)
    patch.encode()
    assert same(applied(before, patch), after)
    assert diff_trees({"a": regular(b"x", 0o600)}, {"a": regular(b"x", 0o664)}) == ""


def test_added_and_deleted_files_have_the_usual_headers() -> None:
    patch = diff_trees(
        {"old": regular(b"x\n")}, {"new file": regular(b"y\n"), "t\u00e9": regular(b"", 0o755)}
    )
    assert "diff --git a/new file b/new file\nnew file mode 100644\n" in patch
    assert "diff --git a/old b/old\ndeleted file mode 100644\n" in patch
    assert 'diff --git "a/t\\303\\251" "b/t\\303\\251"\nnew file mode 100755\n' in patch


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", ".git/hooks/pre-commit"])
def test_patches_of_paths_outside_the_tree_are_refused(name: str) -> None:
    patch = f"diff --git a/{name} b/{name}\nnew file mode 100644\n"
    patch += f"--- /dev/null\n+++ b/{name}\n@@ -0,0 +1 @@\n+x\n"
    with pytest.raises(PatchError):
        applied({}, patch)


@pytest.mark.parametrize("name", ["../outside", "/outside", "a/../../outside", "a//b", "."])
def test_file_states_outside_the_working_folder_are_refused(name: str) -> None:
    with pytest.raises(PatchError, match="no file can be at"):
        diff_trees({}, {name: regular(b"x\n")})
    with pytest.raises(PatchError, match="no file can be at"):
        apply_patch({name: regular(b"x\n")}, "--- a/a\n+++ b/a\n@@ -0,0 +1 @@\n+y\n")


def test_no_file_is_written_through_a_link(tmp_path: Path) -> None:
    with pytest.raises(PatchError, match="no file can be at"):
        diff_trees({}, {"a": link(str(tmp_path)), "a/b": regular(b"x\n")})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 1900])
def test_a_path_through_too_many_folders_is_refused(depth: int) -> None:
    name = "a/" * depth + "f"
    with pytest.raises(PatchError, match=f"a path through {depth} folders"):
        diff_trees({}, {name: regular(b"x\n")})
    patch = diff_trees({}, {"f": regular(b"x\n")}).replace("/f", f"/{name}")
    for read in (touched, named_paths, lambda text: apply_patch({name: regular(b"")}, text)):
        with pytest.raises(PatchError, match=f"a path through {depth} folders"):
            read(patch)
    after = {"a/" * MAX_DEPTH + "f": regular(b"x\n")}
    assert apply_patch({}, diff_trees({}, after)).files == after


def test_a_patch_of_too_many_files_is_refused_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: list[Path] = []
    write = trees._write_one

    def record(path: Path, state: FileState) -> None:
        written.append(path)
        write(path, state)

    monkeypatch.setattr(trees, "_write_one", record)
    monkeypatch.setattr(trees, "MAX_FILES", 3)
    four = {str(number): regular(b"x\n") for number in range(4)}
    with pytest.raises(PatchError, match="a patch of 4 files; at most 3"):
        diff_trees({}, four)
    assert written == []
    monkeypatch.setattr(trees, "MAX_FILES", 4)
    patch = diff_trees({}, four)
    assert len(written) == 4
    assert apply_patch({}, patch).files == four
    written.clear()
    monkeypatch.setattr(trees, "MAX_FILES", 3)
    for read in (touched, named_paths, lambda text: apply_patch(four, text)):
        with pytest.raises(PatchError, match="at most 3"):
            read(patch)
    assert written == []


def test_binary_files_are_detected_in_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten times the files take about ten times the time."""
    monkeypatch.setattr("engine.patches.diff._diff", lambda *_: "")

    def seconds(count: int) -> float:
        after = {f"{number}.bin": regular(b"\xff") for number in range(count)}
        began = time.process_time()
        diff_trees({}, after)
        return time.process_time() - began

    short = min(seconds(1_000) for _ in range(5))
    assert seconds(10_000) < 50 * short
