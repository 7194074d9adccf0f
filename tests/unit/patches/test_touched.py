"""Touched paths of honest and hostile patches: nothing else changes, and all readers agree."""

from __future__ import annotations

import base64
import errno
import hashlib
import os
import random
import zlib
from contextlib import suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from engine.errors import HostError, PatchError
from engine.patches import commands, trees
from engine.patches.apply import apply_patch, touched
from engine.patches.diff import diff_trees
from engine.patches.harness import apply_as_harness, named_paths
from engine.patches.sections import split_patch
from engine.patches.structure import parse_patch
from engine.patches.trees import FileState, read_tree
from tests.builders.dataset_builders import new_file

Tree = dict[str, FileState]
PATCHES_PER_SEED = 130
NAMES = [
    "a.py", "pkg/b.py", "pkg/sub/c.py", "sp ace.py", "sp ace/b/d.py", 'q"uote', "tab\there", "é.txt", "-dash",
    "b/x", "a/y", "x.orig", "x.rej", "conftest.py", "tests/test_a.py", "dev/null", "new file mode 100644",
    "2020-01-01", "1a", "new\nline", "back\\slash",
]  # fmt: skip
CONTENTS = [
    b"", b"one\n", b"no end", b"x\n" * 30, b"\r\n\r\nx\r\n", b"\0binary\xff", "café\n".encode("latin-1"),
    b"--- a/conftest.py\n+++ b/conftest.py\n@@ -0,0 +1 @@\n+x\n", b"diff --git a/conftest.py b/conftest.py\n",
    b"".join(b"line %d\n" % number for number in range(20)), b"1a\nx\n.\nw\nq\n", b"Index: conftest.py\n",
    b"-- \n++ \n@@ -1 +1 @@\n", b"rename from a.py\nrename to b.py\n", b"\\ No newline at end of file\n",
]  # fmt: skip
LINES = [
    "diff --git a/conftest.py b/conftest.py", "Index: conftest.py", "--- a/conftest.py", "+++ b/conftest.py",
    "--- /dev/null", "+++ /dev/null\t1970-01-01", "+++ b/conftest.py 2020-01-01 00:00:00.000000000 +0000",
    "@@ -0,0 +1 @@", "@@ -1,9 +1,9 @@", "+x", "-x", " x", "", "\\ No newline at end of file",
    "rename from a.py", "rename to conftest.py", "copy from a.py", "copy to conftest.py",
    "new file mode 100644", "new file mode 120000", "new file mode 160000", "deleted file mode 100644",
    "old mode 100644", "new mode 100755", "index 0000000..1111111", "similarity index 100%",
    "GIT binary patch", "literal 3", "1a", ".", "w", "Only in b: x", "*** a.py", "--- a.py",
]  # fmt: skip


def some_tree(generator: random.Random) -> Tree:
    tree: Tree = {}
    for name in generator.sample(NAMES, generator.randrange(1, 8)):
        if any(other.startswith(f"{name}/") or name.startswith(f"{other}/") for other in tree):
            continue
        if generator.random() < 0.15:
            tree[name] = FileState(0o120777, generator.choice([b"pkg", b"/etc/passwd", b"../up"]))
        else:
            mode = generator.choice([0o100644, 0o100755])
            tree[name] = FileState(mode, generator.choice(CONTENTS))
    return tree


def with_renames(generator: random.Random, tree: Tree) -> str:
    """Return renames and copies of files, which ``diff_trees`` never writes."""
    parts = []
    plain = [name for name in tree if name.isascii() and name.isprintable() and not set(name) & set('"\\')]
    for name in plain[:2]:
        word, target = generator.choice(["rename", "copy"]), f"to/{generator.randrange(9)}"
        parts.append(
            f"diff --git a/{name} b/{target}\nsimilarity index 100%\n{word} from {name}\n{word} to {target}\n"
        )
    return "".join(parts)


def mangled(generator: random.Random, patch: str) -> str:
    lines = patch.split("\n")
    for _ in range(generator.randrange(1, 4)):
        at = generator.randrange(len(lines))
        match generator.randrange(6):
            case 0:
                lines.insert(at, generator.choice(LINES))
            case 1:
                del lines[at]
            case 2:
                lines[at] = generator.choice(LINES)
            case 3:
                lines[at] += generator.choice(
                    [" ", "\t2020-01-01", "\r", " 2020-01-01 00:00:00 +0000", "/", "\\"]
                )
            case 4:
                lines = lines[at:] + lines[:at]
            case _:
                lines[at] = lines[at].replace("a/", generator.choice(["", "../", "/", "a//", "./"]), 1)
        lines = lines or [""]
    return "\n".join(lines)


def some_patch(generator: random.Random) -> tuple[Tree, str]:
    before = some_tree(generator)
    after = {name: state for name, state in before.items() if generator.random() < 0.7}
    for name, state in some_tree(generator).items():
        if not any(
            other.startswith(f"{name}/") or name.startswith(f"{other}/") for other in {*before, *after}
        ):
            after[name] = state
    patch = diff_trees(before, after)
    return before, patch + with_renames(generator, before) if generator.random() < 0.3 else patch


@pytest.mark.parametrize("seed", range(2))
def test_touched_paths_include_all_that_change(seed: int) -> None:
    """Apply honest and mangled patches: only touched paths may change.

    Readers of patch text agree with git on patches that git wrote.
    """
    generator = random.Random(seed)
    counts = {"applied": 0, "refused": 0}
    honest = [some_patch(generator) for _ in range(12)]
    for _, patch in honest:
        parts = split_patch(patch)
        assert sorted({path for part in parts for path in part.paths}) == touched(patch), patch
        assert "".join(part.text for part in parts).replace("\n", "") == patch.replace("\n", "")
    for number in range(PATCHES_PER_SEED):
        before, patch = honest[number % len(honest)]
        if number >= len(honest):
            patch = mangled(generator, patch)
        if number % 20 == 0:
            names = named_paths(patch)
            known = {name: before[name] for name in names if name in before}
            with suppress(PatchError):
                fallback, _ = apply_as_harness(known, patch, names=names)
                assert set(fallback.paths) <= set(names), patch
        try:
            names = touched(patch)
            changes = apply_patch(before, patch)
        except PatchError:
            counts["refused"] += 1
            continue
        counts["applied"] += 1
        assert set(changes.paths) <= set(names), patch
        if number % 5 == 0:
            few = apply_patch({name: before[name] for name in names if name in before}, patch)
            assert (few.files, few.deleted) == (changes.files, changes.deleted), "more than the named files"
        # Touched paths that do not change are only read, as sources of copies; a submodule is no file.
        unchanged = set(names) - set(changes.paths)
        assert unchanged <= {*before} or "mode 160000" in patch or "copy" in patch, patch
    assert min(counts.values()) > 0


@pytest.mark.parametrize(
    "line",
    [
        "diff --git x://" + " a" * 100_000,
        "diff --git " + "a:// " * 50_000,
        "Binary files x" + " and a" * 50_000,
        f"@@ -1,{'9' * 5000} +1 @@",
        f"--- a/x\n+++ b/x\n@@ -{'9' * 5000} +1 @@\n+x",
    ],
)
def test_headers_of_quadratic_cost_are_refused(line: str) -> None:
    with pytest.raises(PatchError):
        parse_patch(f"{line}\n" * 3)


def binary(data: bytes, claimed: int | None = None) -> str:
    """Return a handmade git binary patch that adds ``a.bin``."""
    packed = zlib.compress(data, 9)
    rows = [packed[start : start + 52] for start in range(0, len(packed), 52)]
    lengths = [chr(64 + len(row)) if len(row) <= 26 else chr(70 + len(row)) for row in rows]
    body = [
        length + base64.b85encode(row, pad=True).decode() for length, row in zip(lengths, rows, strict=True)
    ]
    blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    head = [
        "diff --git a/a.bin b/a.bin",
        "new file mode 100644",
        f"index {'0' * 40}..{blob}",
        "GIT binary patch",
    ]
    return "\n".join([*head, f"literal {len(data) if claimed is None else claimed}", *body, "", ""])


@pytest.mark.parametrize(
    ("module", "limit", "size"),
    [(commands, "FILE_BYTES", 8 << 20), (commands, "MEMORY_BYTES", 64 << 20), (trees, "MAX_BYTES", 8 << 20)],
)
def test_an_inflating_binary_literal_is_refused(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, limit: str, size: int
) -> None:
    """A small patch of a large file exceeds the limit of a file, of memory, or of the whole tree."""
    data = b"\0" * (48 << 20)
    patch = binary(data)
    assert len(patch) < len(data) // 500
    assert apply_patch({}, patch).files["a.bin"].data == data
    monkeypatch.setattr(module, limit, size)
    with pytest.raises(PatchError):
        apply_patch({}, patch)
    assert apply_patch({}, binary(b"\0" * 1000)).paths == ["a.bin"]


@pytest.mark.parametrize("claimed", [10, 1 << 40, (1 << 63) - 1])
def test_a_binary_literal_with_a_wrong_size_is_refused(claimed: int) -> None:
    with pytest.raises(PatchError):
        apply_patch({}, binary(b"\0" * 1000, claimed))


def test_a_hanging_command_is_killed_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "DEADLINE_S", 0.2)
    with commands.private_folder() as name, pytest.raises(HostError, match="took more than 0.2 s"):
        commands.run_git(Path(name), "-c", "alias.wait=!sleep 600", "wait")


def test_processor_time_of_commands_is_limited(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "patch").write_text("#!/bin/sh\nwhile :; do :; done\n")
    (tmp_path / "patch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(commands, "CPU_S", 1)
    with commands.private_folder() as name, pytest.raises(PatchError, match="exceeded its limits"):
        commands.run_patch(Path(name))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_a_host_error(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def full(_path: Path, _state: FileState) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("engine.patches.trees._write_one", full)
    with pytest.raises(HostError, match="the disk of this machine is full"):
        apply_patch({"a": FileState(0o100644, b"")}, new_file("b", "b\n"))


def test_a_git_failure_on_a_full_disk_is_a_host_error(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = new_file("a/b", "b\n").replace("b\n", "b")
    with pytest.raises(PatchError):
        apply_patch({}, missing)
    usage = SimpleNamespace(free=1 << 20)
    monkeypatch.setattr("engine.patches.commands.shutil", SimpleNamespace(disk_usage=lambda _folder: usage))
    with pytest.raises(HostError, match="the disk of this machine has 1048576 bytes left"):
        apply_patch({}, missing)


def test_a_submodule_adds_no_file() -> None:
    head = "diff --git a/sub b/sub\nnew file mode 160000\n--- /dev/null\n+++ b/sub\n"
    assert apply_patch({}, f"{head}@@ -0,0 +1 @@\n+Subproject commit {'1' * 40}\n").paths == []


def test_special_files_are_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("x")
    assert list(read_tree(tmp_path)) == ["file"]
