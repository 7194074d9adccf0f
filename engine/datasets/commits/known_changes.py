"""Changes that no further task may repeat: those of other datasets and of earlier candidates."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

from engine.config.importing import DecontaminationConfig
from engine.datasets.commits.filters import Candidate, instance_id
from engine.datasets.importers.base import Imported
from engine.datasets.importers.decontamination import Decontamination
from engine.datasets.importers.filters import Exclusion
from engine.datasets.store import iterate_rows
from engine.patches.sections import added_lines, patch_hash, removed_lines
from engine.types import Task, TaskAnswer

_SIMILARITY = 0.8
"""Share of the lines of two changes that are in both (Jaccard), from which they count as one."""
_MIN_LINES = 4
"""Distinct changed lines from which changes are compared; smaller ones coincide by chance unless equal."""


class KnownChanges:
    """Index of changes; grows with each candidate.

    Args:
        decontamination: the tasks of other datasets.
    """

    def __init__(self, decontamination: Decontamination) -> None:
        self._decontamination = decontamination
        self._hashes: dict[str, str] = {}
        self._similar = _SimilarChanges()

    @classmethod
    def read(cls, datasets: Sequence[str], home: Path) -> Self:
        """Return an index of stored datasets. Raises DatasetError: one is missing or damaged."""
        return cls(Decontamination(DecontaminationConfig(), _references(datasets, home)))

    def check(self, repository: str, candidate: Candidate) -> Exclusion | None:
        """Return where a change is known from; None if it is new, and then remember it.

        Args:
            repository: name of its repository.
            candidate: the commit.
        """
        task = Task(
            id="",
            instance_id=instance_id(repository, candidate.commit),
            repo=repository,
            base_commit=candidate.commit.parents[0],
            problem_statement="",
            image="",
        )
        imported = Imported(task=task, answer=TaskAnswer(gold_patch=candidate.gold_patch))
        overlap = self._decontamination.check(imported)
        if overlap is not None:
            return Exclusion("contaminated", overlap.detail)
        digest, lines = patch_hash(candidate.gold_patch), _changed_lines(candidate.gold_patch)
        same = self._hashes.get(digest) or self._similar.find(lines)
        if same:
            return Exclusion("duplicate", f"{same} has the same change or nearly the same")
        self._hashes[digest] = task.instance_id
        self._similar.add(lines, task.instance_id)
        return None


def _references(datasets: Sequence[str], home: Path) -> Iterator[Imported]:
    for name in datasets:
        for row in iterate_rows(home, name):
            yield Imported(task=row.task, answer=row.answer)


class _SimilarChanges:
    """Sets of lines, found by similarity.

    Similar sets share one of their first elements in a common order (prefix filtering): only these are
    indexed.
    """

    def __init__(self) -> None:
        self._changes: list[tuple[frozenset[int], str]] = []
        self._by_line: dict[int, list[int]] = {}

    def find(self, lines: frozenset[int]) -> str:
        """Return the name of a similar change; empty if there is none."""
        near = sorted({number for line in _prefix(lines) for number in self._by_line.get(line, ())})
        for other, name in map(self._changes.__getitem__, near):
            if len(lines & other) >= _SIMILARITY * len(lines | other):
                return name
        return ""

    def add(self, lines: frozenset[int], name: str) -> None:
        """Add a change."""
        for line in _prefix(lines):
            self._by_line.setdefault(line, []).append(len(self._changes))
        self._changes.append((lines, name))


def _prefix(lines: frozenset[int]) -> list[int]:
    if len(lines) < _MIN_LINES:
        return []
    return sorted(lines)[: len(lines) - math.ceil(_SIMILARITY * len(lines)) + 1]


def _changed_lines(patch: str) -> frozenset[int]:
    """Return the hashes of the added and of the removed lines, without white space."""
    signed = [("+", line) for line in added_lines(patch)] + [("-", line) for line in removed_lines(patch)]
    texts = ((sign, re.sub(r"\s+", "", line)) for sign, line in signed)
    return frozenset(hash(text) for text in texts if text[1])
