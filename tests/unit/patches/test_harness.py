"""Patches that ``git apply`` refuses: same results as those of the official harness's commands."""

from __future__ import annotations

import ast
import importlib.util
import os
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from engine.errors import PatchError
from engine.patches.diff import diff_trees
from engine.patches.harness import HARNESS_COMMANDS, apply_as_harness, named_paths
from engine.patches.trees import FileState, read_tree, write_tree
from engine.python_syntax import parse_python

BASE = "".join(f"line {number}\n" for number in range(40))
REGULAR, LINK = 0o100644, 0o120777

Files = dict[str, FileState]


def file(text: str | bytes, mode: int = REGULAR) -> FileState:
    return FileState(mode, text.encode() if isinstance(text, str) else text)


def changed(text: str, **lines: str) -> str:
    """Return ``text`` with lines replaced, as by ``_3="new"``."""
    rows = text.split("\n")
    for number, line in lines.items():
        rows[int(number[1:])] = line
    return "\n".join(rows)


def harness_commands() -> list[str]:
    spec = importlib.util.find_spec("swebench")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("swebench is not installed")
    source = (Path(spec.submodule_search_locations[0]) / "harness" / "run_evaluation.py").read_text()
    for node in parse_python(source).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "GIT_APPLY_CMDS":
            commands: list[str] = ast.literal_eval(node.value)
            return commands
    raise AssertionError("swebench has no list of commands")


class Repository:
    """A repository with ``base`` in its history and ``now`` as its tree."""

    def __init__(self, folder: Path, base: Files, now: Files) -> None:
        self.folder = folder
        self.patch_file = folder.with_suffix(".diff")
        folder.mkdir()
        self.git("init", "-q")
        for tree in (base, now):
            self.put(tree)
            self.git("add", "-A")
            self.git("commit", "-q", "--allow-empty", "-m", "x")

    def git(self, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        command = ["git", *identity, *arguments]
        env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull}
        return subprocess.run(command, cwd=self.folder, input=stdin, capture_output=True, env=env)

    def put(self, tree: Files) -> None:
        for name in self.files():
            (self.folder / name).unlink()
        write_tree(self.folder, tree)

    def files(self) -> Files:
        return {name: state for name, state in read_tree(self.folder).items() if not name.startswith(".git/")}

    def blobs(self, patch: str) -> list[bytes]:
        names = [line.split()[1].split("..")[0] for line in patch.split("\n") if line.startswith("index ")]
        results = [self.git("cat-file", "blob", name) for name in names]
        return [result.stdout for result in results if result.returncode == 0]

    def official(self, patch: str) -> Files | None:
        """Return the tree after the harness's own commands, or None if all of them fail."""
        self.patch_file.write_bytes(patch.encode("utf-8", "surrogateescape"))
        for attempt, command in enumerate(harness_commands()):
            if attempt:
                subprocess.run("git checkout -q -- . ; git clean -qfd", shell=True, cwd=self.folder)
            argv = [*shlex.split(command), str(self.patch_file)]
            if subprocess.run(argv, cwd=self.folder, capture_output=True).returncode == 0:
                return self.files()
        check = self.git("apply", "--check", "--reverse", str(self.patch_file))
        return self.files() if check.returncode == 0 else None


def simple(before: str, after: str, name: str = "a.py") -> str:
    return diff_trees({name: file(before)}, {name: file(after)})


NEW = changed(BASE, _20="new 20", _21="new 21")
MADE = diff_trees({"a.py": file(BASE)}, {"a.py": file(NEW)})
CREATE = diff_trees({"a.py": file(BASE)}, {"a.py": file(NEW), "new.py": file("made\n")})
MODE = diff_trees({"a.sh": file("x\n")}, {"a.sh": file("x\n", 0o100755)})
BINARY = diff_trees({"a.bin": file(b"\xff\x00\x01" * 50)}, {"a.bin": file(b"\xff\x00\x02" * 50)})
RENAME = (
    "diff --git a/old.py b/fresh.py\nsimilarity index 90%\nrename from old.py\nrename to fresh.py\n"
    + MADE.split("\n", 1)[1].replace("a/a.py", "a/old.py").replace("b/a.py", "b/fresh.py")
)
STUB = "diff --git a/{0} b/{0}\n{1}\nindex {2}\nBinary files {3} and {4} differ\n"
ADDED_STUB = STUB.format("p.png", "new file mode 100644", "0000000..2e1f0aa", "/dev/null", "b/p.png")
CHANGED_STUB = (
    "diff --git a/p.png b/p.png\nindex 2e1f0aa..3e1f0aa 100644\nBinary files a/p.png and b/p.png differ\n"
)
REMOVED_STUB = STUB.format("p.png", "deleted file mode 100644", "2e1f0aa..0000000", "a/p.png", "/dev/null")
CASES: Mapping[str, tuple[Files, Files, str, bool]] = {
    "moved and changed context": (
        {}, {"a.py": file("more\n" * 9 + changed(BASE, _18="other"))}, MADE, True),
    "made from an older content, half of it there": (
        {"a.py": file(BASE)}, {"a.py": file(changed(BASE, _20="new 20"))},
        simple(BASE, changed(BASE, _20="new 20", _30="new 30")), True),
    "a new file is there already": (
        {"a.py": file(BASE)}, {"a.py": file(BASE), "new.py": file("made\n")}, CREATE, True),
    "another file is where a new one goes": (
        {"a.py": file(BASE)}, {"a.py": file(BASE), "new.py": file("other\n")}, CREATE, False),
    "it is there": ({"a.py": file(BASE)}, {"a.py": file(NEW)}, MADE, True),
    "a conflict": (
        {"a.py": file(BASE)}, {"a.py": file(changed(BASE, _20="theirs", _21="theirs"))}, MADE, False),
    "a mode": ({}, {"a.sh": file("x\n", 0o100755)}, MODE, True),
    "a binary file that has it": ({}, {"a.bin": file(b"\xff\x00\x02" * 50)}, BINARY, True),
    "a rename of what changed": (
        {"old.py": file(BASE)}, {"old.py": file(changed(BASE, _17="o", _18="o", _19="o"))}, RENAME, True),
    "a symlink where the file was": (
        {}, {"a.py": FileState(LINK, b"b.py"), "b.py": file(BASE)}, MADE, False),
    "talk around it": (
        {}, {"a.py": file("more\n" + changed(BASE, _18="o"))},
        "Here is the patch:\n1. it\n" + MADE + "\nDone\n1a\n", True),
    "a new file beside fuzz": (
        {}, {"a.py": file("more\n" + changed(BASE, _18="o"))}, CREATE, True),
    "an added binary file without its contents": (
        {"a.py": file(BASE)}, {"a.py": file(BASE)}, ADDED_STUB + MADE, True),
    "a changed binary file without its contents": (
        {"a.py": file(BASE)}, {"a.py": file(BASE), "p.png": file(b"\0")}, CHANGED_STUB + MADE, True),
    "a removed binary file without its contents": (
        {"a.py": file(BASE)}, {"a.py": file(BASE), "p.png": file(b"\0")}, REMOVED_STUB + MADE, False),
    "wrong counts": (
        {}, {"a.py": file("more\n" + BASE)}, MADE.replace("@@ -18,8 +18,8 @@", "@@ -18,9 +18,9 @@"), True),
}  # fmt: skip


def test_commands_equal_those_of_the_harness() -> None:
    assert list(HARNESS_COMMANDS) == harness_commands()


@pytest.mark.parametrize("name", CASES)
def test_results_equal_those_of_the_harness(tmp_path: Path, name: str) -> None:
    base, now, patch, applies = CASES[name]
    repository = Repository(tmp_path / "repository", base, now)
    names = named_paths(patch)
    before = {path: state for path, state in repository.files().items() if path in names}
    blobs = repository.blobs(patch)
    official = repository.official(patch)
    assert (official is not None) is applies
    if official is None:
        with pytest.raises(PatchError):
            apply_as_harness(before, patch, blobs, names=names)
        return
    changes, how = apply_as_harness(before, patch, blobs, names=names)
    after = {
        name: state for name, state in {**before, **changes.files}.items() if name not in changes.deleted
    }
    left = {path for path in official if path.endswith((".orig", ".rej")) and path not in before}
    wanted = {path: state for path, state in official.items() if path not in left}
    untouched = {path: state for path, state in now.items() if path not in before}
    assert {path: (state.git_mode, state.data) for path, state in {**untouched, **after}.items()} == {
        path: (state.git_mode, state.data) for path, state in wanted.items()
    }
    assert how


def test_omitted_binary_files_are_named() -> None:
    before = {"a.py": file(BASE)}
    _, how = apply_as_harness(before, ADDED_STUB + MADE, names=["a.py", "p.png"])
    assert how == "1 binary files without their contents were left out of the patch: p.png"


@pytest.mark.parametrize("name", ["../out.py", ".git/config", "sub/.GIT/hooks/post-commit", "/etc/x"])
def test_paths_outside_of_the_tree_are_refused(tmp_path: Path, name: str) -> None:
    patch = MADE.replace("a/a.py", f"a/{name}").replace("b/a.py", f"b/{name}")
    with pytest.raises(PatchError):
        apply_as_harness({name: file(BASE)}, patch, names=[name])
