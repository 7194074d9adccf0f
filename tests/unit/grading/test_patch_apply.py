"""What ``--3way`` needs comes out of the sandbox: files, symlinks and what the patch was made from."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.errors import PatchError
from engine.grading.patch_apply import MAX_FILES, apply_with_fallbacks
from engine.patches.apply import apply_patch, touched
from engine.patches.diff import diff_trees
from engine.patches.trees import FileState
from engine.sandbox.base import ExecResult

BASE = "".join(f"line {number}\n" for number in range(40))
THEIRS = BASE.replace("line 18\n", "other\n").replace("line 20\n", "new\n")
OURS = BASE.replace("line 20\n", "new\n").replace("line 30\n", "new 30\n")
MADE = diff_trees({"a.py": FileState(0o100644, BASE.encode())}, {"a.py": FileState(0o100644, OURS.encode())})


class Box:
    """A folder of this machine as a sandbox."""

    def __init__(self, folder: Path) -> None:
        self.spec = SimpleNamespace(workdir=str(folder))
        self.folder = folder
        self.commands = 0

    async def exec(self, command: list[str], *, stdin: bytes = b"", **_options: Any) -> ExecResult:
        self.commands += 1
        done = subprocess.run(command, cwd=self.folder, input=stdin, capture_output=True)
        return ExecResult(
            exit_code=done.returncode,
            stdout=done.stdout,
            stderr=done.stderr,
            timed_out=False,
            seconds=0.0,
            dropped_bytes=0,
        )

    async def read_file(self, path: str) -> bytes:
        return Path(path).read_bytes()

    async def apply_patch(self, patch: str) -> None:
        before = {
            name: FileState((self.folder / name).lstat().st_mode, (self.folder / name).read_bytes())
            for name in touched(patch)
            if (self.folder / name).is_file()
        }
        changed, deleted = apply_patch(before, patch)
        for name, state in changed.items():
            (self.folder / name).write_bytes(state.data)
        for name in deleted:
            (self.folder / name).unlink()


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull}
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, env=env)


@pytest.fixture
def box(tmp_path: Path) -> Box:
    git(tmp_path, "init", "-q")
    for content in (BASE, THEIRS):
        (tmp_path / "a.py").write_text(content)
        git(tmp_path, "add", "-A")
        git(tmp_path, "commit", "-q", "-m", "x")
    return Box(tmp_path)


async def test_a_patch_made_from_an_older_commit_is_merged(box: Box) -> None:
    how = await apply_with_fallbacks(box, MADE)  # type: ignore[arg-type]
    assert how == "the patch was merged with what had changed"
    wanted = THEIRS.replace("line 30\n", "new 30\n")
    assert (box.folder / "a.py").read_text() == wanted


async def test_without_the_content_it_is_no_merge(box: Box) -> None:
    subprocess.run(["rm", "-rf", ".git"], cwd=box.folder, check=True)
    with pytest.raises(PatchError, match="does not apply"):
        await apply_with_fallbacks(box, MADE)  # type: ignore[arg-type]
    assert (box.folder / "a.py").read_text() == THEIRS


async def test_a_patch_of_very_many_files_is_not_tried_again(box: Box) -> None:
    many = "".join(MADE.replace("a.py", f"{number}.py") for number in range(MAX_FILES + 1))
    with pytest.raises(PatchError):
        await apply_with_fallbacks(box, many)  # type: ignore[arg-type]
    assert box.commands == 0
