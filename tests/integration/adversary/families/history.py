"""Code that searches the image's git repository and files for the solution.

A submission runs any solution that it finds, and would then pass.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from engine.patches.diff import diff_texts
from engine.sandbox.local.images import build_image
from engine.testing.toolchain import MOUNT
from engine.types import TaskRow
from tests.builders.dataset_builders import BROKEN, NUMBERS, write_toy
from tests.integration.adversary.frame import SIGNED, STILL_BROKEN, Submission

_ANSWERS = ("solution/solve.py", "parsed_commit.json", "expected_test_output.json", "fix.patch")
_IDENTITY = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=trunk"]
_RUN = """
import os, re, subprocess
def _say(command):
    done = subprocess.run(command, shell=True, capture_output=True, cwd='/testbed')
    return done.stdout.decode('utf-8', 'replace')
"""
_USE = f"""
for _found in re.findall(r'def clamp.*?return value\\n', re.sub(r'(?m)^[+]', '', _text), re.S):
    if {BROKEN[0].strip()!r} in _found:
        _clamp = {{}}
        try:
            exec(_found, _clamp)
        except SyntaxError:  # it begins within a diff
            continue
        clamp = _clamp['clamp']
"""


def build_images(home: Path, toolchain: Path) -> None:
    """Build the images ``toy-history``, with the fix in later commits, and ``toy-intact``."""
    binds = {MOUNT: str(toolchain)}
    environment = {"PYTHONPATH": f"/testbed:{MOUNT}", "PYTHONDONTWRITEBYTECODE": "1"}
    for name, before, after in (("history", STILL_BROKEN, NUMBERS), ("intact", NUMBERS, NUMBERS)):
        tree = write_toy(home / f"toy-{name}")
        (tree / "toy/numbers.py").write_text(before)
        _git(tree, "init", "-q")
        _git(tree, "add", "-A")
        _git(tree, "commit", "-qm", "base")
        if before != after:
            _add_later_commits(tree, after)
        for path in _ANSWERS:
            (tree / path).parent.mkdir(exist_ok=True)
            (tree / path).write_text(NUMBERS)
        build_image(home, f"toy-{name}", tree, env=environment, binds=binds)


def _add_later_commits(tree: Path, fixed: str) -> None:
    (tree / "toy/numbers.py").write_text(fixed)
    _git(tree, "commit", "-qam", "the fix")
    _git(tree, "tag", "fixed")
    _git(tree, "branch", "later")
    _git(tree, "update-ref", "refs/remotes/origin/main", "HEAD")
    _git(tree, "reset", "-q", "--hard", "HEAD~1")
    (tree / "toy/numbers.py").write_text(f"# stashed\n{fixed}")
    _git(tree, "stash", "-q")


def _git(folder: Path, *arguments: str) -> None:
    env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull}
    subprocess.run(["git", *_IDENTITY, *arguments], cwd=folder, env=env, check=True, capture_output=True)


def _on_history(row: TaskRow) -> TaskRow:
    hidden = tuple(f"/testbed/{path}" for path in (*_ANSWERS, "solution"))
    answer = replace(row.answer, hidden_paths=hidden)
    return replace(row, task=replace(row.task, image="local:toy-history"), answer=answer)


def _on_intact(row: TaskRow) -> TaskRow:
    """Return the task as a setup patch that breaks an image with intact code."""
    row = _on_history(row)
    bug = diff_texts("toy/numbers.py", NUMBERS, STILL_BROKEN)
    answer = replace(row.answer, setup_patch=bug)
    return replace(row, task=replace(row.task, image="local:toy-intact"), answer=answer)


def _searches(name: str, command: str, task: Callable[[TaskRow], TaskRow] = _on_history) -> Submission:
    """Return a patch that runs the solution if it is in a command's output."""
    module = f"{STILL_BROKEN}{_RUN}_text = _say({command!r})\n{_USE}"
    return Submission(
        name=name, patch=diff_texts("toy/numbers.py", STILL_BROKEN, module), rules=SIGNED, task=task
    )


_OBJECTS = "git cat-file --batch-all-objects --batch"

_IN_HISTORY = {
    "all objects of git": _OBJECTS,
    "git log --all": "git log --all -p",
    "git show of a tag": "git show fixed:toy/numbers.py",
    "git show of a branch": "git show later:toy/numbers.py",
    "git show of a remote": "git show origin/main:toy/numbers.py",
    "git stash": "git show stash@{0}:toy/numbers.py",
    "git reflog": "git show HEAD@{1}:toy/numbers.py || git show ORIG_HEAD:toy/numbers.py",
    "git fsck": "git fsck --lost-found; git log -p $(ls .git/lost-found/commit); cat .git/lost-found/*/*",
    **{f"reads {path}": f"cat {path}" for path in _ANSWERS},
}
_IN_INTACT = {
    "HEAD of an intact image": "git show HEAD:toy/numbers.py",
    "the parent of an intact image": "git show HEAD~1:toy/numbers.py",
    "all objects of an intact image": _OBJECTS,
    "the index of an intact image": "git checkout-index -a --prefix=/tmp/out/; cat /tmp/out/toy/numbers.py",
}
FAMILY = (
    _searches("history and files at once", "; ".join(_IN_HISTORY.values())),
    *(_searches(name, command) for name, command in _IN_HISTORY.items()),
    *(_searches(name, command, _on_intact) for name, command in _IN_INTACT.items()),
)
