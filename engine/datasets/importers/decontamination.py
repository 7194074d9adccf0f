"""Decontamination against a benchmark: by repository, instance, commit, statement and fix.

Statements are compared by word n-grams, exactly, with an inverted index. The overlap of two is the share of
the shorter one's n-grams that also occur in the other. Fixes are compared by the lines they add. For a few
thousand reference rows the index has some hundred thousand entries, so no sketch (MinHash) is needed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from engine.config.importing import DecontaminationConfig
from engine.datasets.importers.base import Imported
from engine.datasets.importers.filters import Exclusion
from engine.datasets.importers.repositories import VERIFIED_REPOSITORIES, canonical, same_repository
from engine.patches.sections import added_lines

_MIN_LINES = 3
"""Minimum number of significant added lines of a compared fix; shorter ones coincide by chance."""
_MIN_LINE = 10
_MIN_COMMIT = 7


class Decontamination:
    """Index of a benchmark's rows; ``check`` returns the overlap of a row with it.

    Args:
        config: compared features, and the threshold of overlap.
        reference: the benchmark's rows; empty compares repositories alone.
    """

    def __init__(self, config: DecontaminationConfig, reference: Iterable[Imported] = ()) -> None:
        self._config = config
        verified = VERIFIED_REPOSITORIES if config.verified_repositories else ()
        self._repositories: Sequence[str] = (*verified, *config.repositories)
        self._names: list[str] = []
        self._instances: dict[str, int] = {}
        self._commits: dict[str, int] = {}
        self._statements = _Index()
        self._fixes = _Index()
        for row in reference:
            self._add(row)

    @property
    def num_references(self) -> int:
        """Return the number of rows of the benchmark."""
        return len(self._names)

    def _add(self, row: Imported) -> None:
        number = len(self._names)
        task = row.task
        self._names.append(task.instance_id)
        self._instances.setdefault(task.instance_id.lower(), number)
        if len(task.base_commit) >= _MIN_COMMIT:
            self._commits.setdefault(task.base_commit.lower(), number)
        self._statements.add(number, ngrams(task.problem_statement, self._config.ngram))
        self._fixes.add(number, line_hashes(row.answer.gold_patch))

    def check(self, row: Imported) -> Exclusion | None:
        """Return the overlap of a row with the benchmark; None when there is none."""
        task = row.task
        for repo in self._repositories:
            if same_repository(task.repo, repo):
                return Exclusion("decontamination:repository", f"{canonical(task.repo)} is {repo}")
        known = self._instances.get(task.instance_id.lower())
        if known is not None:
            return Exclusion("decontamination:instance", f"the benchmark has {self._names[known]}")
        for commit in (task.base_commit, str(row.answer.metadata.get("commit") or "")):
            known = self._commits.get(commit.lower()) if len(commit) >= _MIN_COMMIT else None
            if known is not None:
                return Exclusion("decontamination:commit", f"it has a commit of {self._names[known]}")
        return self._text(row) if self._names else None

    def _text(self, row: Imported) -> Exclusion | None:
        grams = ngrams(row.task.problem_statement, self._config.ngram)
        near = self._statements.nearest(grams)
        if near and near[1] >= self._config.overlap:
            where = f"{near[1]:.0%} of the statement's n-grams are those of {self._names[near[0]]}"
            return Exclusion("decontamination:statement", where)
        lines = line_hashes(row.answer.gold_patch)
        near = self._fixes.nearest(lines) if len(lines) >= _MIN_LINES else None
        if near and near[1] >= self._config.overlap and self._fixes.size(near[0]) >= _MIN_LINES:
            where = f"{near[1]:.0%} of the fix's lines are those of {self._names[near[0]]}"
            return Exclusion("decontamination:fix", where)
        return None


class _Index:
    """Inverted index: feature → rows that have it."""

    def __init__(self) -> None:
        self._rows: dict[int, list[int]] = {}
        self._sizes: dict[int, int] = {}

    def add(self, number: int, features: frozenset[int]) -> None:
        self._sizes[number] = len(features)
        for feature in features:
            self._rows.setdefault(feature, []).append(number)

    def size(self, number: int) -> int:
        return self._sizes[number]

    def nearest(self, features: frozenset[int]) -> tuple[int, float] | None:
        """Return the row with the largest overlap, and the overlap; the first of several wins."""
        shared: Counter[int] = Counter()
        for feature in features:
            shared.update(self._rows.get(feature, ()))
        overlaps = (
            (number, count / min(self._sizes[number], len(features))) for number, count in shared.items()
        )
        return max(overlaps, key=lambda pair: (pair[1], -pair[0]), default=None)


def ngrams(text: str, n: int) -> frozenset[int]:
    """Return the hashes of all ``n``-word sequences, case and punctuation ignored."""
    words = re.findall(r"[^\W_]+", text.lower())
    if not words:
        return frozenset()
    return frozenset(hash(tuple(words[start : start + n])) for start in range(max(1, len(words) - n + 1)))


def line_hashes(patch: str) -> frozenset[int]:
    """Return the hashes of the lines that a patch adds, without white space; short ones are left out."""
    lines = (re.sub(r"\s+", "", line) for line in added_lines(patch))
    return frozenset(hash(line) for line in lines if len(line) >= _MIN_LINE)
