"""Lines of a row's test files that agents can read in their own tree, and mutants that change none of them.

A submission that knows a test's true text can tell a false run from a true one.
"""

from __future__ import annotations

import posixpath

from engine.errors import PatchError
from engine.grading.counterfactual.base import Mutant
from engine.patches.structure import FileChange, parse_patch
from engine.types import TaskAnswer, TaskRow


class VisibleLines:
    """Lines of test files in the tree that an agent works on.

    Args:
        row: names the files that only grading has, and what its test patch changes.
    """

    def __init__(self, row: TaskRow) -> None:
        self._workdir = row.task.workdir
        self._hidden = [self._place(path) for path in _hidden(row.answer)]
        self._changes: dict[str, FileChange] = {}
        try:
            for change in parse_patch(row.answer.test_patch):
                self._changes |= {self._place(path): change for path in change.paths}
        except PatchError:
            pass  # then every line counts as visible

    def changed_by(self, mutant: Mutant, content: bytes) -> bool:
        """Return whether a mutant changes a line that agents can read.

        Args:
            content: true content of the file.
        """
        visible = self._of(mutant.path, content)
        first = content.rfind(b"\n", 0, mutant.start) + 1
        last = content.find(b"\n", mutant.end)
        last = len(content) if last < 0 else last
        old = content[first:last]
        new = content[first : mutant.start] + mutant.replacement.encode() + content[mutant.end : last]
        mutated = {line.strip() for line in new.split(b"\n")}
        return any(line.strip() in visible and line.strip() not in mutated for line in old.split(b"\n"))

    def _of(self, path: str, content: bytes) -> set[bytes]:
        place = self._place(path)
        if any(place == hidden or place.startswith(f"{hidden}/") for hidden in self._hidden):
            return set()
        change = self._changes.get(place)
        if change is not None and change.old_path is None:
            return set()
        lines = content.split(b"\n")
        for hunk in reversed(change.hunks if change is not None else ()):
            count = hunk.new.count("\n")
            lines[hunk.new_start - 1 : hunk.new_start - 1 + count] = hunk.old.encode().split(b"\n")
        return {line.strip() for line in lines}

    def _place(self, path: str) -> str:
        return posixpath.normpath(posixpath.join(self._workdir, path))


def has_hidden_tests(row: TaskRow) -> bool:
    """Return whether agents cannot read some of a row's tests."""
    return bool(_hidden(row.answer) or row.answer.test_patch)


def _hidden(answer: TaskAnswer) -> list[str]:
    return [*answer.test_files, *answer.binary_files, *answer.hidden_paths]
