"""Removal of the answer from a task's image before code under test runs: solution files, later commits.

Hidden tests and the scripts that run them stay, as grading needs them. To remove more, extend ``_ANSWERS``.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator

from engine.sandbox.base import Sandbox
from engine.sandbox.integrity import prepare_for_grading
from engine.types import TaskAnswer, TaskRow

_ANSWERS = frozenset(
    {
        "solution", "oracle", "fix.patch", "gold.patch", "solution.patch", "fix-run.sh", "run.sh",
        "prepare.sh",
        "expected_test_output.json", "execution_result.json", "parsed_commit.json", "modified_files.json",
        "modified_entities.json", "syn_issue.json",
    }
)  # fmt: skip
"""Names of hidden files and folders that hold the solution or the expected outcomes."""
_COMMIT = re.compile(r"(?<![0-9A-Za-z_])[0-9a-f]{7,40}(?![0-9A-Za-z_])")
_TAKES = re.compile(r"\bgit\s+(?:-\S+\s+(?:\S+=\S+\s+)?)*(?:checkout|restore|show)\s[^;&|<>\n]+")
_MAX_COMMITS = 20


async def remove_answers(box: Sandbox, row: TaskRow) -> None:
    """Remove solution files and the git history that began after the task.

    Raises:
        SandboxError: parts of the answer may remain.
    """
    await box.hide(answer_paths(row.answer))
    await prepare_for_grading(
        box, commits=named_commits(row), files=taken_files(row.answer), setup_patch=row.answer.setup_patch
    )


def answer_paths(answer: TaskAnswer) -> list[str]:
    """Return the hidden paths that hold the answer, unless the test command itself names them."""
    return [
        path
        for path in answer.hidden_paths
        if posixpath.basename(path.rstrip("/")) in _ANSWERS and path not in answer.test_command
    ]


def named_commits(row: TaskRow) -> list[str]:
    """Return the base commit and all possible names of commits in the test scripts."""
    commits = [row.task.base_commit] if _COMMIT.fullmatch(row.task.base_commit) else []
    for text in _scripts(row.answer):
        commits += _COMMIT.findall(_without_patches(text))
    return list(dict.fromkeys(commits))[:_MAX_COMMITS]


def taken_files(answer: TaskAnswer) -> list[str]:
    """Return the paths that the test scripts check out of commits."""
    taken: list[str] = []
    for text in _scripts(answer):
        for command in _TAKES.findall(_without_patches(text)):
            try:
                words = shlex.split(command)
            except ValueError:
                continue
            paths = words[words.index("--") + 1 :] if "--" in words else words[2:]
            taken += [path.rpartition(":")[2] for path in paths if not path.startswith("-")]
    return [path for path in dict.fromkeys(taken) if path and not _COMMIT.fullmatch(path)]


def _scripts(answer: TaskAnswer) -> Iterator[str]:
    yield answer.test_command
    yield from (text for path, text in answer.test_files.items() if path.endswith(".sh"))


def _without_patches(script: str) -> str:
    """Return a script without the lines of here-documents that are patches."""
    return "\n".join(
        line for line in script.split("\n") if not line.startswith(("+", "-", " ", "@@", "index "))
    )
