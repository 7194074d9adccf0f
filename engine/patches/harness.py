"""Fallbacks of the official harness for a failed ``git apply``, on copies of the files that a patch touches.

The harness's commands run in a repository of these files, each after the harness's cleanup, which does not
undo conflicts left by ``--3way``. Finally, the harness's reverse check accepts a tree that is patched anyway.
Differences from the harness: ``patch`` gets headers and hunks only, because it would run apparent ``ed``
scripts, whatever its options; and it creates no symlinks.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path

from engine.errors import PatchError
from engine.patches.apply import Changes, changes_between, encode, touched
from engine.patches.commands import check_disk_space, private_folder, run_git, run_patch
from engine.patches.structure import header_paths, parse_patch
from engine.patches.trees import Tree, check_names, is_plain, read_tree, write_tree

HARNESS_COMMANDS = (
    "git apply --verbose",
    "git apply --verbose --3way",
    "git apply --verbose --reject",
    "patch --batch --forward --fuzz=5 -p1 -i",
)
"""swebench's ``GIT_APPLY_CMDS``; the first one has been tried already."""
_TIDY = ("--no-backup-if-mismatch", "--reject-file=-")
_HOW = {"git": "the patch was merged with what had changed", "patch": "the patch applied with fuzz only"}
_REPOSITORY = ("--git-dir=../repository", "--work-tree=.")
"""Repository folder beside the tree, where no file of the tree can configure it."""
_SYMLINK = re.compile(r"(?:mode|\.\.\w*)\s+0*12\d{4}")
_HEADER = re.compile(
    r"(?:diff --git|---|\+\+\+|index|old mode|new mode|new file mode|deleted file mode|rename from|rename to"
    r"|copy from|copy to) "
)
_CHOPPED = 3
"""Maximum number of blank lines missing at the end, as in ``patch``."""
_SHOWN_NAMES = 5
_COPIED_BYTES = 1 << 30
"""Maximum size that ``patch`` may write: every file of the patch as a copy of the largest, bytes."""


def named_paths(patch: str) -> list[str]:
    """Return the paths that a patch may touch, sorted; taken from its text if git cannot read it.

    Raises:
        PatchError: the patch names too many or too deep paths.
    """
    try:
        return touched(patch)
    except PatchError:
        names = sorted(name for name in header_paths(patch) if is_plain(name))
        check_names(names)
        return names


def apply_as_harness(
    before: Tree, patch: str, blobs: Sequence[bytes] = (), *, names: Collection[str]
) -> tuple[Changes, str]:
    """Apply a patch by the first command that succeeds; return the changes and the command's description.

    Args:
        before: every existing file among ``names``.
        blobs: original contents named by the patch, where the repository has them.
        names: paths that the patch names; no other may change.

    Raises:
        PatchError: no command succeeded, or one would lead out of the tree or change an unnamed file.
    """
    if any(".git" in name.lower().split("/") for name in names):
        raise PatchError("the patch reaches into .git")
    with private_folder() as name:
        folder, tree = Path(name), Path(name) / "tree"
        (folder / "patch.diff").write_bytes(encode(patch))
        write_tree(tree, before)
        _make_repository(folder, blobs)
        how = _first_that_succeeds(folder, patch, before, names)
        changes = changes_between(before, read_tree(tree))
    if unnamed := sorted(set(changes.paths) - set(names)):
        raise PatchError(f"the patch changes files that it does not name: {', '.join(unnamed[:3])}")
    return changes, how


def _first_that_succeeds(folder: Path, patch: str, before: Tree, names: Collection[str]) -> str:
    """Run the commands until one succeeds; leave the patched tree. Raises PatchError when none does."""
    for command in HARNESS_COMMANDS[1:]:
        run_git(folder, *_REPOSITORY, "checkout", "--", ".")
        run_git(folder, *_REPOSITORY, "clean", "-fdx")
        program, *arguments = command.split()
        if program == "git":
            succeeded = run_git(folder, *_REPOSITORY, *arguments, "../patch.diff").exit_code == 0
        elif succeeded := _suits_patch(patch, before, names):
            (folder / "bare.diff").write_bytes(encode(_headers_and_hunks(patch)))
            succeeded = run_patch(folder, *_TIDY, *arguments, "../bare.diff").exit_code == 0
        if succeeded:
            return _how(program, patch)
    check_disk_space(folder, encode(patch))
    if run_git(folder, "apply", "--check", "--reverse", "../patch.diff").exit_code != 0:
        raise PatchError("the patch does not apply with any command of the official harness")
    return "the patch, or the rest of it, was applied already"


def _how(program: str, patch: str) -> str:
    """Describe the result of a successful command; ``patch`` skips binary files without contents."""
    if program == "patch" and (names := _binary_names(patch)):
        shown = ", ".join(names[:_SHOWN_NAMES])
        return f"{len(names)} binary files without their contents were left out of the patch: {shown}"
    return _HOW[program]


def _binary_names(patch: str) -> list[str]:
    changes = parse_patch(_completed(patch))
    return [change.paths[-1] for change in changes if change.binary and change.paths]


def _suits_patch(patch: str, before: Tree, names: Collection[str]) -> bool:
    """Return whether ``patch`` may process it: readable, without symlinks, not too large."""
    largest = max((len(state.data) for state in before.values()), default=0)
    if _SYMLINK.search(patch) or largest * len(names) > _COPIED_BYTES:
        return False
    try:
        parse_patch(_completed(patch))
    except PatchError:
        return False
    return True


def _headers_and_hunks(patch: str) -> str:
    text = _completed(patch)
    lines = text.split("\n")
    bare: list[str] = []
    for change in parse_patch(text):
        end = change.hunks[0].first_line if change.hunks else change.end_line
        bare += [line for line in lines[change.first_line : end] if _HEADER.match(line)]
        for hunk in change.hunks:
            bare += lines[hunk.first_line : hunk.end_line]
    return "".join(f"{line}\n" for line in bare)


def _completed(patch: str) -> str:
    """Return a patch with its missing final blank lines added."""
    text = patch if patch.endswith("\n") else f"{patch}\n"
    for missing in range(_CHOPPED):
        try:
            parse_patch(text + "\n" * missing)
        except PatchError:
            continue
        return text + "\n" * missing
    return text + "\n" * _CHOPPED


def _make_repository(folder: Path, blobs: Sequence[bytes]) -> None:
    """Create a repository whose index is the tree and whose objects include the blobs. Raises PatchError."""
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
        if done.exit_code != 0:
            raise PatchError(f"no repository of the patch's files: {done.stderr}")
