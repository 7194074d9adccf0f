"""Application of graded patches in a sandbox: merges, smuggled paths, ed scripts, binary stubs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from engine.errors import HostError, PatchError
from engine.grading.submission.apply import MAX_FILES, AppliedPatch, apply_graded
from engine.patches.apply import Changes
from engine.patches.diff import diff_texts, diff_trees
from engine.patches.trees import FileState, read_tree, write_tree
from engine.sandbox.base import ExecResult, Sandbox
from engine.types import FindingKind, TaskAnswer, TaskRow
from tests.builders.dataset_builders import BROKEN, NUMBERS, new_file
from tests.builders.rollout_builders import make_row

BASE = "".join(f"line {number}\n" for number in range(40))
THEIRS = BASE.replace("line 18\n", "other\n").replace("line 20\n", "new\n")
OURS = BASE.replace("line 20\n", "new\n").replace("line 30\n", "new 30\n")
MADE = diff_trees({"a.py": FileState(0o100644, BASE.encode())}, {"a.py": FileState(0o100644, OURS.encode())})


class Box:
    """A local folder used as a sandbox."""

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

    async def fetch_files(self, names: Sequence[str]) -> dict[str, FileState]:
        return {name: state for name, state in read_tree(self.folder).items() if name in names}

    async def commit_files(self, changes: Changes) -> None:
        try:
            for name in (*changes.deleted, *changes.files):
                (self.folder / name).unlink(missing_ok=name in changes.files)
            write_tree(self.folder, changes.files)
        except OSError as error:
            raise PatchError(f"the patch does not apply: {error.strerror}") from error


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


def task(**answer: Any) -> TaskRow:
    row = make_row()
    return replace(
        row, task=replace(row.task, workdir="/w"), answer=TaskAnswer(**{"gold_patch": "", **answer})
    )


async def applied(box: Box, patch: str, row: TaskRow | None = None) -> AppliedPatch:
    return await apply_graded(cast(Sandbox, box), patch, row or task())


async def test_a_patch_made_from_an_older_commit_is_merged(box: Box) -> None:
    merge = await applied(box, MADE)
    assert (merge.how, merge.problem) == ("the patch was merged with what had changed", "")
    wanted = THEIRS.replace("line 30\n", "new 30\n")
    assert (box.folder / "a.py").read_text() == wanted
    assert (await applied(box, FUZZY)).how == "the patch applied with fuzz only"


async def test_a_patch_without_its_base_content_is_not_merged(box: Box) -> None:
    subprocess.run(["rm", "-rf", ".git"], cwd=box.folder, check=True)
    assert "does not apply" in (await applied(box, MADE)).problem
    assert (box.folder / "a.py").read_text() == THEIRS


async def test_a_missing_program_is_a_host_error(
    box: Box, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every patch needs git; one that git does not apply needs patch, too."""
    programs = tmp_path_factory.mktemp("programs")
    monkeypatch.setenv("PATH", str(programs))
    with pytest.raises(HostError, match="no 'git' on this machine"):
        await applied(box, MADE)
    git_program = shutil.which("git", path=os.defpath)
    assert git_program is not None
    (programs / "git").symlink_to(git_program)
    with pytest.raises(HostError, match="no 'patch' on this machine"):
        await applied(box, FUZZY)
    assert (box.folder / "a.py").read_text() == THEIRS


async def test_a_patch_of_too_many_files_runs_no_commands(box: Box) -> None:
    many = "".join(MADE.replace("a.py", f"{number}.py") for number in range(MAX_FILES + 1))
    assert (await applied(box, many)).problem
    assert box.commands == 0


DATE = " 2020-01-01 00:00:00.000000000 +0000"
FORGE = "@@ -0,0 +1 @@\n+forge()\n"
GOOD = diff_texts("a.py", THEIRS, f"better\n{THEIRS}")
FUZZY = diff_texts("a.py", THEIRS, THEIRS.replace("line 3\n", "3\n")).replace(" line 2\n", " else\n")
SMUGGLED = {
    "plain": f"--- /dev/null\n+++ b/conftest.py\n{FORGE}",
    "date after a space": f"--- a/conftest.py{DATE}\n+++ b/conftest.py{DATE}\n{FORGE}",
    "date after a tab": f"--- /dev/null\t1970-01-01\n+++ b/conftest.py\t2020-01-01\n{FORGE}",
    "no prefix": f"--- conftest.py\t2020-01-01\n+++ conftest.py\t2020-01-01\n{FORGE}",
    "quoted": f'diff --git "a/conftest.py" "b/conf\\164est.py"\nnew file mode 100644\n--- /dev/null\n'
    f'+++ "b/conf\\164est.py"\n{FORGE}',
    "index": f"Index: conftest.py\n--- conftest.py\n+++ conftest.py\n{FORGE}",
    "index alone": f"Index: a/conftest.py\n{FORGE}",
    "index behind a header": f"diff --git a/b.py b/b.py\nIndex: a/conftest.py\n{FORGE}",
    "index before a missing file": f"--- a/missing 2020\n+++ a/missing 2020\nIndex: a/conftest.py\n{FORGE}",
    "rename": "diff --git a/b.py b/conftest.py\nrename from b.py\nrename to conftest.py\n",
    "copy": "diff --git a/b.py b/conftest.py\nsimilarity index 100%\ncopy from b.py\ncopy to conftest.py\n",
    "link": "diff --git a/conftest.py b/conftest.py\nnew file mode 120000\n--- /dev/null\n+++ b/conftest.py\n"
    "@@ -0,0 +1 @@\n+b.py\n\\ No newline at end of file\n",
    "dots": f"--- /dev/null\n+++ b/x/../conftest.py\n{FORGE}",
    "double slash": f"--- /dev/null\n+++ b//conftest.py\n{FORGE}",
    "carriage return": f"--- /dev/null\r\n+++ b/conftest.py\r\n{FORGE}",
}


@pytest.fixture
def task_box(box: Box) -> Box:
    (box.folder / "b.py").write_text("forge()\n")
    return box


@pytest.mark.parametrize("before", ["", GOOD, FUZZY], ids=["alone", "after a part", "after fuzz"])
@pytest.mark.parametrize("name", SMUGGLED)
async def test_no_header_smuggles_a_test_configuration(task_box: Box, name: str, before: str) -> None:
    result = await applied(task_box, before + SMUGGLED[name])
    assert not os.path.lexists(task_box.folder / "conftest.py")
    left = {path.name for path in task_box.folder.iterdir()} - {".git", "a.py", "b.py"}
    assert left <= {"conftest.py\r"}
    assert result.problem or left or any(path.endswith("conftest.py") for path in result.filtered.left_out)


@pytest.mark.parametrize(
    "header", ["--- a/b.py\n+++ b/b.py\n", "Index: b.py\n", "diff --git a/b.py b/b.py\n"]
)
@pytest.mark.parametrize(
    "script", ["1i\nprinted\n.\nw\nq\n", "1!touch RAN\n1i\nx\n.\n", "0a\nx\n.\ne !touch RAN\n"]
)
async def test_ed_scripts_are_not_run(task_box: Box, header: str, script: str) -> None:
    result = await applied(task_box, header + script.replace("RAN", str(task_box.folder / "ran")))
    assert result.problem
    assert (task_box.folder / "b.py").read_text() == "forge()\n"
    assert not (task_box.folder / "ran").exists()


async def test_new_files_at_paths_of_hidden_tests_are_left_out(task_box: Box) -> None:
    """The agent created a file at the path of a hidden test; its code is still graded."""
    (task_box.folder / "hidden.py").write_text("secret\n")
    collision = (
        f"diff --git a/hidden.py b/hidden.py\nnew file mode 100644\n--- /dev/null\n+++ b/hidden.py\n{FORGE}"
    )
    result = await applied(task_box, GOOD + collision, task(hidden_paths=("/w/hidden.py", "/elsewhere")))
    assert (result.problem, result.filtered.left_out) == ("", ("hidden.py",))
    assert (task_box.folder / "hidden.py").read_text() == "secret\n"
    assert (task_box.folder / "a.py").read_text().startswith("better\n")


@pytest.mark.parametrize("how", ["changed", "added"])
async def test_edits_of_tests_that_do_not_apply_leave_code_graded(task_box: Box, how: str) -> None:
    (task_box.folder / "test_a.py").write_text("theirs\n")
    edit = new_file("test_a.py", "x\n") if how == "added" else diff_texts("test_a.py", "mine\n", "x\n")
    result = await applied(task_box, edit + GOOD)
    assert (result.problem, result.filtered.left_out) == ("", ("test_a.py",))
    assert [finding.kind for finding in result.filtered.findings] == [FindingKind.TESTS_EDITED]
    assert (task_box.folder / "test_a.py").read_text() == "theirs\n"
    assert (task_box.folder / "a.py").read_text().startswith("better\n")


async def test_renames_between_code_and_tests_change_only_code(task_box: Box) -> None:
    (task_box.folder / "tests").mkdir()
    (task_box.folder / "tests/helper.py").write_text("help\n")
    move = "diff --git a/{0} b/{1}\nsimilarity index 100%\nrename from {0}\nrename to {1}\n"
    patch = move.format("tests/helper.py", "helper.py") + move.format("b.py", "tests/b.py")
    result = await applied(task_box, patch)
    assert result.filtered.left_out == ("tests/b.py", "tests/helper.py")
    tree = read_tree(task_box.folder)
    assert {name for name in tree if not name.startswith(".git/")} == {"a.py", "helper.py", "tests/helper.py"}


STUBS = Path(__file__).parent / "predictions" / "binary_stub.jsonl"


@pytest.mark.parametrize(
    ("number", "said", "left_out"),
    [
        (0, "", ()),
        (1, "1 binary files without their contents were left out of the patch: plot.png", ()),
        (2, "", ("toy/__pycache__/numbers.cpython-311.pyc",)),
        (3, "", ()),
    ],
)
async def test_a_binary_file_without_content_does_not_block_the_patch(
    box: Box, number: int, said: str, left_out: tuple[str, ...]
) -> None:
    (box.folder / "toy").mkdir()
    (box.folder / "toy/numbers.py").write_text(NUMBERS.replace(*BROKEN))
    patch = json.loads(STUBS.read_text().splitlines()[number])["model_patch"]
    result = await applied(box, patch)
    assert (result.problem, result.how, result.filtered.left_out) == ("", said, left_out)
    assert (box.folder / "toy/numbers.py").read_text() == NUMBERS


async def test_invalid_patches_change_nothing(box: Box) -> None:
    for patch in ("garbage", "\ud800", f"{GOOD}\ud800", "diff --git a/a.py b/a.py\n"):
        assert (await applied(box, patch)).problem
    assert (await applied(box, " \n")).problem == ""
    assert (box.folder / "a.py").read_text() == THEIRS
