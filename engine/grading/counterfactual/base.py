"""Types of counterfactual grading, and the interfaces between mutators, proofs, references and the grader.

A **mutant** is one edit of one test function that makes it false, or leaves it true in other words. A
**variant** is a set of mutants, at most one false one per test function, that was proven by a run of the gold
patch. A **decoy** is a variant that leaves tests true that a solution fixes. A **reference** is everything
known about a row from runs of its gold patch.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Protocol

from engine.types import TaskRow, TestOutcome

NO_FILES: Mapping[str, bytes] = MappingProxyType({})
SCRIPT = "script"
"""Name of a verifier's only test, in bash or Python: each variant changes one of its comparisons, since the
first that is false may end it."""
_MAX_PER_LINE = 4
_MAX_PER_FUNCTION = 200


class MutantKind(StrEnum):
    """Kind of a mutant, the most convincing first."""

    VALUE = "value"
    """Quiet: the test reads as its author could have written it. Another expected value of the same type,
    shape and notation, or the opposite condition in its usual spelling."""
    NEAR = "near"
    """Quiet beside true mutants: another expected value in their words, as if the author had expected it."""
    CHANGED = "changed"
    """Loud: an existing assertion became one that nobody would write, e.g. ``assert not a == b``."""
    ADDED = "added"
    """Loud: a false assertion was added to the test."""
    TRUE = "true"
    """True for every solution, in other words: an assertion that refuses values near the expected one by
    itself, or one more that is always true."""


QUIET = frozenset({MutantKind.VALUE, MutantKind.NEAR})
"""Kinds of false mutants that nothing in the test's text tells from a true test."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One edit of a test function, see ``MutantKind``; offsets are bytes in the original content."""

    path: str
    """Path of the test file as in ``Reference.files``."""
    function: str
    """Dotted name of the test function, e.g. ``TestMean.test_mean``."""
    line: int
    """Line of the edit, from 1."""
    asserted: int = 0
    """Line of the assertion that it makes false; 0: that of the edit."""
    kind: MutantKind
    before: str
    """Source text of the assertion, at most 300 characters; empty for an added one."""
    after: str
    """Source text that takes its place, at most 300 characters."""
    start: int
    end: int
    replacement: str
    """Text written instead of the bytes from ``start`` to ``end``."""
    parameters: tuple[tuple[str, str], ...] = ()
    """For parametrised tests whose names hold expected values: text in brackets at the end of a test's name,
    and that of the same test in the false run."""
    row: int | None = None
    """Row, from 0, of the table that a loop goes through, where the mutant changes that row alone."""

    def touches(self, other: Mutant) -> bool:
        """Return whether two mutants of a file overlap or meet."""
        return self.path == other.path and self.start <= other.end and other.start <= self.end


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """Mutants that together were proven to fail under the gold patch."""

    mutants: tuple[Mutant, ...]
    must_fail: tuple[str, ...] = ()
    """Required tests that failed (neither an error nor missing) in the proof and passed in the true run of
    the gold patch; empty where the rule knows no tests by name. The rule did not pass in the proof."""
    doubtful: tuple[str, ...] = ()
    """Required tests that passed in the true run of the gold patch, and of which the proof does not show that
    solutions pass them beside these mutants: they may end as they like."""
    renamed: tuple[tuple[str, str], ...] = ()
    """Required test, and its name in the false run, where that differs."""
    score: float = 0.0
    """Reward of the proof, for rules with partial rewards; 0 where the rule knows no tests by name."""

    @property
    def quiet(self) -> bool:
        """Whether nothing tells false tests from true ones, apart from those that have no quiet mutant."""
        return any(mutant.kind in QUIET for mutant in self.mutants)

    @property
    def true(self) -> bool:
        """Whether every solution passes all of its tests."""
        return all(mutant.kind is MutantKind.TRUE for mutant in self.mutants)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Knowledge about a row from runs of its gold patch."""

    content: str
    """Content hash of the row; a row that has changed has no reference."""
    outcomes: Mapping[str, TestOutcome] = field(default_factory=dict)
    """Required test → outcome under the gold patch."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Path, relative to the workdir or absolute → true content when the tests start; files with mutants."""
    variants: tuple[Variant, ...] = ()
    """Those of false runs."""
    decoys: tuple[Variant, ...] = ()
    """Those of true runs: without forgery, what only a solution passes fails in them. Without a function to
    make false beside, all of their tests are true."""
    signs: tuple[str, ...] = ()
    """Signs of tampering in these runs: the project's own tests give them, so they say nothing of others."""
    coverage: Mapping[str, MutantKind] = field(default_factory=dict)
    """Required test that fails in some variant → kind of mutant, the first of the kinds that it has."""
    note: str = ""
    """Reason why there are no variants; empty where there are some."""
    problem: str = ""
    """Reason why the proof failed: then nothing else is known. Empty where it did not fail."""


def some_of_each_line(mutants: Iterable[Mutant | None]) -> Iterator[Mutant]:
    """Yield the first few mutants of each line of a function, and of each row, in their order."""
    counts: Counter[tuple[int, int | None]] = Counter()
    for mutant in mutants:
        if mutant is not None and counts[mutant.line, mutant.row] < _MAX_PER_LINE:
            counts[mutant.line, mutant.row] += 1
            yield mutant
        if counts.total() == _MAX_PER_FUNCTION:
            return


class Mutator(Protocol):
    """Finds the mutants of one language's test files."""

    def mutants(
        self,
        source: bytes,
        path: str,
        names: Collection[str] | None = None,
        beside: Mapping[str, bytes] = NO_FILES,
    ) -> Sequence[Mutant]:
        """Return sound mutants of a test file, in the order of preference within each function.

        Args:
            names: words of the names of the tests wanted; others may be left out. None for all.
            beside: path → content of the row's other test files: a mutant may change one of them instead.

        Returns:
            Nothing where the source cannot be parsed.
        """
        ...

    def tests_by_function(
        self, functions: Collection[tuple[str, str]], tests: Sequence[str]
    ) -> Mapping[tuple[str, str], Sequence[str]]:
        """Return the tests, named as reports and logs do, that certainly run each function.

        Args:
            functions: path of the test file, and name as in ``Mutant.function``.
        """
        ...


class ReferenceStore(Protocol):
    """References of a dataset's rows."""

    async def load(self, row: TaskRow) -> Reference | None:
        """Return the reference of a row; None when there is none or the row has changed."""
        ...

    async def save(self, row: TaskRow, reference: Reference) -> None:
        """Store the reference of a row in place of an older one."""
        ...


def variant_files(reference: Reference, variant: Variant | None) -> dict[str, bytes]:
    """Return path → content of every file of the reference, with a variant's mutants applied."""
    mutants = variant.mutants if variant is not None else ()
    return {
        path: apply_mutants(content, [mutant for mutant in mutants if mutant.path == path])
        for path, content in reference.files.items()
    }


def variant_row(row: TaskRow, variant: Variant | None) -> TaskRow:
    """Return the row of a run: in a false one, tests named after their expected values have other names."""
    if variant is None or not variant.renamed:
        return row
    names = dict(variant.renamed)
    answer = row.answer
    return replace(
        row,
        answer=replace(
            answer,
            fail_to_pass=tuple(names.get(test, test) for test in answer.fail_to_pass),
            pass_to_pass=tuple(names.get(test, test) for test in answer.pass_to_pass),
            expected={names.get(test, test): status for test, status in answer.expected.items()},
            test_command=_renamed(answer.test_command, names),
        ),
    )


def _renamed(command: str, names: Mapping[str, str]) -> str:
    """Return a command with other names of tests, at once: one test's new name may be another's old one."""
    spelled = {write(test): write(name) for test, name in names.items() for write in (str, shlex.quote)}
    longest = sorted(spelled, key=len, reverse=True)
    return re.sub("|".join(map(re.escape, longest)), lambda found: spelled[found[0]], command)


def apply_mutants(content: bytes, mutants: Sequence[Mutant]) -> bytes:
    """Return the content with the mutants' edits; all other bytes are unchanged.

    Raises:
        ValueError: two mutants overlap, or one lies outside of the content.
    """
    parts: list[bytes] = []
    done = 0
    for mutant in sorted(mutants, key=lambda one: one.start):
        if not done <= mutant.start <= mutant.end <= len(content):
            raise ValueError(f"the mutant at bytes {mutant.start}-{mutant.end} of {mutant.path} does not fit")
        parts += [content[done : mutant.start], mutant.replacement.encode()]
        done = mutant.end
    return b"".join([*parts, content[done:]])
