"""Selection of commits that can become tasks, by their change alone.

The limits are those of R2E-Gym (0 < files with code < 5, lines < 200, patch < 10,000 characters).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from engine.config.curation import CommitCuration
from engine.datasets.commits.history import Commit
from engine.datasets.commits.languages.base import EntityChange, Language
from engine.datasets.importers.filters import Exclusion
from engine.errors import HostileInputError
from engine.patches.sections import count_changed_lines, keep_files

_REVERT = re.compile(r"^(revert\b|revert:|this reverts commit)", re.IGNORECASE | re.MULTILINE)
_CHERRY_PICK = re.compile(r"\(cherry picked from commit [0-9a-f]{7,}\)")
_NATIVE = frozenset({".c", ".cc", ".cpp", ".cxx", ".h", ".hpp", ".pyx", ".pxd", ".pxi", ".rs", ".f", ".f90"})


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenTests:
    """A test file that a model wrote for a commit without tests."""

    model: str
    code: str
    rejected: Sequence[Mapping[str, str]] = ()
    """``result`` and ``detail`` of each earlier file or answer that was no use."""

    def record(self) -> dict[str, Any]:
        """Return how the file was made, for the row's metadata."""
        return {"method": "written", "model": self.model, "rejected": list(self.rejected)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A commit whose change can become a task."""

    commit: Commit
    language: Language
    gold_patch: str
    """Its change to code that is no test."""
    test_paths: tuple[str, ...]
    """Test files that it adds or changes, relative to the root; empty only where a model writes tests."""
    entities: dict[str, EntityChange]
    """File → changed functions, classes and methods."""
    written_tests: WrittenTests | None = None
    """Tests by a model; None for the commit's own."""

    @property
    def key(self) -> str:
        """Return the key of its trial: the commit, and the hash of tests by a model."""
        if self.written_tests is None:
            return self.commit.sha
        return f"{self.commit.sha}-{hashlib.sha256(self.written_tests.code.encode()).hexdigest()[:16]}"

    @property
    def num_entities(self) -> int:
        """Return the number of added, removed and changed entities."""
        changes = self.entities.values()
        return sum(len(change.added) + len(change.removed) + len(change.changed) for change in changes)


def instance_id(repository: str, commit: Commit) -> str:
    """Return the readable name of a commit's task."""
    return f"{repository}__{commit.sha[:12]}"


def select(
    commits: Iterable[Commit],
    language: Language,
    config: CommitCuration,
    known: Callable[[Candidate], Exclusion | None],
) -> Iterator[tuple[Commit, Candidate | Exclusion]]:
    """Yield each commit with its candidate, or with the reason why it is none.

    Args:
        commits: of one repository.
        language: of its code.
        config: limits of a change.
        known: returns where the change of a candidate is known from; None if it is new.
    """
    for commit in commits:
        selected = _select(commit, language, config)
        if isinstance(selected, str):
            yield commit, Exclusion(selected, "")
        else:
            yield commit, known(selected) or selected


def _select(commit: Commit, language: Language, config: CommitCuration) -> Candidate | str:
    if len(commit.parents) != 1:
        return "merge" if commit.parents else "first_commit"
    if _REVERT.search(commit.message):
        return "revert"
    if _CHERRY_PICK.search(commit.message):
        return "cherry_pick"
    if not commit.files:
        return "empty"
    code = [file for file in commit.files if language.is_code(file.path)]
    tests = tuple(
        file.path for file in commit.files if language.is_test_file(file.path) and file.mode.strip("0")
    )
    if any(PurePosixPath(file.path).suffix in _NATIVE for file in commit.files):
        return "native_code"
    if not code:
        return "no_code"
    if len(code) > config.max_files:
        return "too_many_files"
    if commit.patch is None or commit.contents is None:
        return "unreadable"
    gold, _ = keep_files(commit.patch, language.is_code)
    if count_changed_lines(gold) > config.max_lines or len(gold) > config.max_patch_chars:
        return "too_large"
    if not tests and not (config.writes_tests and language.writes_tests):
        return "no_tests"
    try:
        entities = {file.path: _entities(commit, file.path, language) for file in code}
    except (SyntaxError, HostileInputError):
        return "no_syntax" if tests else "no_tests"
    entities = {path: change for path, change in entities.items() if change}
    if not entities:  # without tests there is nothing to write tests for
        return "no_real_change" if tests else "no_tests"
    return Candidate(commit=commit, language=language, gold_patch=gold, test_paths=tests, entities=entities)


def _entities(commit: Commit, path: str, language: Language) -> EntityChange:
    assert commit.contents is not None
    old, new = commit.contents[path]
    return language.changed_entities(old or "", new or "")
