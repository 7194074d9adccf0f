"""Filters of imported rows: by language, repository, size, difficulty and quality of the statement."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from engine.config.importing import COMPARISON, FilterConfig
from engine.datasets.importers.base import Imported
from engine.datasets.importers.repositories import same_repository
from engine.patches.sections import added_lines, removed_lines

_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq,
}  # fmt: skip
_MIN_QUOTED = 12
"""Minimum length, without white space, of an added line that counts as a leak when quoted."""


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Reason for the exclusion of a row."""

    by: str
    """Name of the filter under which the exclusion is counted: ``language``, ``where:patch_lines``, …"""
    detail: str


class Filters:
    """Compiled filters of a configuration; ``check`` returns the first filter that a row fails."""

    def __init__(self, config: FilterConfig) -> None:
        self._config = config
        self._languages = frozenset(language.lower() for language in config.languages)
        self._where = [_comparison(text) for text in config.where]

    def check(self, imported: Imported) -> Exclusion | None:
        """Return the reason for excluding a row; None when it is kept."""
        config, task = self._config, imported.task
        language = str(task.metadata.get("language") or "")
        if self._languages and language not in self._languages:
            return Exclusion("language", f"its language is {language or 'unknown'}")
        if config.repositories and not any(same_repository(task.repo, repo) for repo in config.repositories):
            return Exclusion("repository", f"its repository is {task.repo}")
        for name, symbol, number in self._where:
            value = task.difficulty.get(name)
            if value is None:
                return Exclusion(f"where:{name}", "it has no such number")
            if not _OPERATORS[symbol](value, number):
                return Exclusion(f"where:{name}", f"{name} is {value:g}")
        if config.drop_ungradable and imported.ungradable:
            return Exclusion("ungradable", imported.ungradable)
        return self._statement(imported)

    def _statement(self, imported: Imported) -> Exclusion | None:
        config = self._config
        words = len(imported.task.problem_statement.split())
        if words < config.min_words:
            return Exclusion("statement:short", f"{words} words")
        if config.max_words and words > config.max_words:
            return Exclusion("statement:long", f"{words} words")
        if config.drop_leaking:
            quoted = leaked_lines(imported)
            if quoted:
                return Exclusion("statement:leaks", f"it quotes {quoted} line(s) of the fix")
        return None


def _comparison(text: str) -> tuple[str, str, float]:
    match = COMPARISON.fullmatch(text)
    assert match is not None, "the configuration has checked it"
    return match[1], match[2], float(match[3])


def leaked_lines(imported: Imported) -> int:
    """Return the number of lines, added but not removed by the gold patch, that the statement quotes."""
    patch = imported.answer.gold_patch
    removed = set(map(_squeezed, removed_lines(patch)))
    added = set(map(_squeezed, added_lines(patch)))
    statement = _squeezed(imported.task.problem_statement)
    return sum(1 for line in added - removed if len(line) >= _MIN_QUOTED and line in statement)


def _squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)
