"""What the official harness tries where ``git apply`` fails, on copies of the files that a patch touches.

Its own commands run in a repository of these files: each after what the harness takes for a clean tree, which
a conflict that ``--3way`` left is not. Last comes its check whether what the last command left is the patched
tree all the same.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from engine.errors import PatchError
from engine.patches.commands import private_folder, run_git
from engine.patches.trees import FileState, Tree, read_tree, write_tree

HARNESS_COMMANDS = (
    "git apply --verbose",
    "git apply --verbose --3way",
    "git apply --verbose --reject",
    "patch --batch --forward --fuzz=5 -p1 -i",
)
"""swebench's ``GIT_APPLY_CMDS``; the first has been tried."""
_HOW = {"git": "the patch was merged with what had changed", "patch": "the patch applied with fuzz only"}
_COMMAND_S = 120.0
_REPOSITORY = ("--git-dir=../repository", "--work-tree=.")
"""Beside the tree, where no file of the tree can configure it."""


def apply_as_harness(
    before: Tree, patch: str, blobs: Sequence[bytes] = ()
) -> tuple[dict[str, FileState], str]:
    """All files after the first way that leads to success, and which one that was, for people.

    Args:
        before: every existing file among ``touched(patch)``.
        blobs: contents that the patch says it was made from, where the repository has them.

    Raises:
        PatchError: no way did, or one would lead out of the tree.
    """
    if any(".git" in name.lower().split("/") for name in before):
        raise PatchError("the patch reaches into .git")
    with private_folder() as name:
        folder, tree = Path(name), Path(name) / "tree"
        (folder / "patch.diff").write_bytes(patch.encode("utf-8", "surrogateescape"))
        write_tree(tree, before)
        _make_repository(folder, blobs)
        for command in HARNESS_COMMANDS[1:]:
            run_git(folder, *_REPOSITORY, "checkout", "--", ".")
            run_git(folder, *_REPOSITORY, "clean", "-fd")
            if _succeeds(folder, command):
                return _kept(read_tree(tree), before), _HOW[command.split()[0]]
        check = ["apply", "--check", "--reverse", "../patch.diff"]
        if run_git(folder, *check).returncode != 0:
            raise PatchError("the patch does not apply in any way of the official harness")
        return _kept(read_tree(tree), before), "the patch was there already, or the rest of it was"


def _make_repository(folder: Path, blobs: Sequence[bytes]) -> None:
    """One whose index is the tree and whose objects hold the blobs. Raises PatchError."""
    (folder / "blobs").mkdir()
    for number, blob in enumerate(blobs):
        (folder / "blobs" / str(number)).write_bytes(blob)
    paths = "".join(f"../blobs/{number}\n" for number in range(len(blobs)))
    for command, stdin in (
        (["init", "--quiet", "--template="], ""),
        (["add", "--all", "--force", "."], ""),
        (["hash-object", "-w", "--no-filters", "--stdin-paths"], paths),
    ):
        done = run_git(folder, *_REPOSITORY, *command, stdin=stdin.encode())
        if done.returncode != 0:
            raise PatchError(f"no repository of the patch's files: {done.stderr.decode(errors='replace')}")


def _succeeds(folder: Path, command: str) -> bool:
    program, *arguments = command.split()
    if program == "git":
        return run_git(folder, *_REPOSITORY, *arguments, "../patch.diff").returncode == 0
    path = os.environ.get("PATH", os.defpath)
    try:
        done = subprocess.run(
            [program, *arguments, "../patch.diff"],
            cwd=folder / "tree",
            env={"PATH": path, "LC_ALL": "C", "TMPDIR": str(folder)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_COMMAND_S,
        )
    except FileNotFoundError:
        raise PatchError(f"there is no '{program}' on this machine to try the patch with fuzz") from None
    except subprocess.TimeoutExpired:
        raise PatchError(f"'{program}' took more than {_COMMAND_S:g} s over the patch") from None
    return done.returncode == 0


def _kept(after: Tree, before: Tree) -> dict[str, FileState]:
    """Without the copies and rejected hunks that commands leave beside files."""
    beside = (".orig", ".rej")
    return {name: state for name, state in after.items() if name in before or not name.endswith(beside)}
