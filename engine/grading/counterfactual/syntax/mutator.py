"""Mutator of languages with a tree-sitter grammar; each brings its tests and their false versions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from tree_sitter import Language, Node

from engine.grading.counterfactual.base import NO_FILES, Mutant, MutantKind, some_of_each_line
from engine.grading.counterfactual.syntax.literals import Edit
from engine.grading.counterfactual.syntax.source import SyntaxSource

_SHORTEST_REPEATED = 3
"""Characters from which on a value that stands twice in an assertion is no coincidence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntaxTest:
    """A test function."""

    name: str
    """Name as in ``Mutant.function``."""
    node: Node
    body: Node
    """Block of the statements, or the one expression."""
    title: str
    """Text that says in words what the test expects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Edits that together make a test false."""

    kind: MutantKind
    within: tuple[int, int]
    """First byte and byte after the last of the statement."""
    edits: tuple[Edit, ...]
    messages: tuple[tuple[int, str], ...] = ()
    """Position and text of messages of the assertion that may repeat the expected value."""


Test = TypeVar("Test", bound=SyntaxTest)


class SyntaxLanguage(Protocol[Test]):
    """The part of mutation that differs between languages."""

    def grammar(self, path: str) -> Language:
        """Return the grammar of a file."""
        ...

    def tests(self, source: SyntaxSource) -> Iterable[Test]:
        """Yield the tests of a file."""
        ...

    def candidates(self, source: SyntaxSource, test: Test) -> Iterator[Candidate]:
        """Yield sound candidates of a test, in the order of preference."""
        ...

    def closeness(self, test: str, path: str, function: str) -> int:
        """Return how closely the name of a test that ran stands for a function; 0 where it does not."""
        ...

    def contains(self, test: str, path: str, function: str) -> bool:
        """Return whether a test of that name fails whenever the function does: a file, a class, a parent."""
        ...


class SyntaxMutator(Generic[Test]):
    """Finds the mutants of test files by their syntax trees."""

    def __init__(self, language: SyntaxLanguage[Test]) -> None:
        self._language = language

    def mutants(
        self,
        source: bytes,
        path: str,
        names: Collection[str] | None = None,
        beside: Mapping[str, bytes] = NO_FILES,  # noqa: ARG002
    ) -> Sequence[Mutant]:
        """Return mutants of test functions: quiet ones first; ``names`` are words of the tests wanted."""
        try:
            parsed = SyntaxSource(source, path, self._language.grammar(path))
            tests = list(self._language.tests(parsed))
            counts = Counter(test.name for test in tests)
            return [
                mutant
                for test in tests
                if counts[test.name] == 1 and not test.node.has_error and _is_wanted(path, test, names)
                for mutant in self._mutants_of(parsed, test)
            ]
        except (ValueError, RecursionError):
            return ()

    def _mutants_of(self, source: SyntaxSource, test: Test) -> Iterator[Mutant]:
        found: dict[MutantKind, dict[tuple[Edit, ...], Candidate]] = {kind: {} for kind in MutantKind}
        for candidate in self._language.candidates(source, test):
            told = _told(candidate, test, source.content)
            found[told.kind].setdefault(told.edits, told)
        for kind, candidates in found.items():
            yield from some_of_each_line(
                source.mutant(test.name, kind, one.within, one.edits) for one in candidates.values()
            )

    def tests_by_function(
        self, functions: Collection[tuple[str, str]], tests: Sequence[str]
    ) -> Mapping[tuple[str, str], Sequence[str]]:
        """Return the tests that stand for each function, given by path and name."""
        found: dict[tuple[str, str], list[str]] = {}
        for test in tests:
            ranks = {one: self._language.closeness(test, *one) for one in functions}
            best = max(ranks.values(), default=0)
            closest = [one for one, rank in ranks.items() if rank == best]
            if best and len(closest) == 1:
                found.setdefault(closest[0], []).append(test)
            elif not best:
                for one in functions:
                    if self._language.contains(test, *one):
                        found.setdefault(one, []).append(test)
        return found


def _is_wanted(path: str, test: SyntaxTest, names: Collection[str] | None) -> bool:
    return names is None or any(word in names for word in re.findall(r"\w+", f"{path} {test.name}"))


def _told(candidate: Candidate, test: SyntaxTest, content: bytes) -> Candidate:
    """Return the candidate with messages that tell of the new value; loud where others tell the old one."""
    if candidate.kind is not MutantKind.VALUE:
        return candidate
    edits = list(candidate.edits)
    for edit in candidate.edits:
        if not edit.before:
            continue
        word = re.compile(rf"(?<!\w){re.escape(edit.before)}(?!\w)")
        if len(edit.before) >= _SHORTEST_REPEATED and _is_repeated(candidate, edit, word, content):
            return replace(candidate, kind=MutantKind.CHANGED)
        if word.search(test.title) or word.search(test.title.lower()):
            return replace(candidate, kind=MutantKind.CHANGED)
        for start, text in candidate.messages:
            for match in word.finditer(text):
                at = start + len(text[: match.start()].encode())
                edits.append(Edit(at, at + len(edit.before.encode()), edit.after))
    return replace(candidate, edits=tuple(edits))


def _is_repeated(candidate: Candidate, edit: Edit, word: re.Pattern[str], content: bytes) -> bool:
    """Return whether the assertion holds the old value elsewhere, its messages apart."""
    first, last = candidate.within
    others = (content[first : edit.start] + b"\0" + content[edit.end : last]).decode("utf-8", "replace")
    in_messages = sum(len(word.findall(text)) for _, text in candidate.messages)
    return len(word.findall(others)) > in_messages
