"""Types of counterfactual grading, and the interface of the store of references.

A **mutant** is one edit of one test function that makes it false. A **variant** is a set of mutants, one per
test function, that the gold patch was proven to fail. A **reference** holds the results of a row's gold
patch.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol

from engine.types import TaskRow, TestOutcome

Function = tuple[str, str]
"""Path of a test file, and dotted name of a test function in it."""
_MAX_PER_LINE = 4
_MAX_PER_FUNCTION = 200


class MutantKind(StrEnum):
    """Kind of a mutant, in the order of preference."""

    VALUE = "value"
    """Another expected value; objects equal to everything and looked-up answers pass it."""
    CHANGED = "changed"
    """The opposite of a condition, or another expected exception."""
    ADDED = "added"
    """A false assertion was added to the test."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One edit of a test function, see ``MutantKind``; offsets are bytes in the original content."""

    path: str
    """Path of the test file as in ``Reference.files``."""
    function: str
    """Dotted name of the test function, e.g. ``TestMean.test_mean``."""
    line: int
    """Line of the edit, from 1."""
    kind: MutantKind
    before: str
    """Source text of the assertion, at most 300 characters; empty for an added one."""
    after: str
    """Source text after the edit, at most 300 characters."""
    start: int
    end: int
    replacement: str
    """Text written instead of the bytes from ``start`` to ``end``."""
    parameters: tuple[tuple[str, str], ...] = ()
    """Parameter ids (bracketed ends of test names) that contain an expected value: original, mutated."""

    def overlaps(self, other: Mutant) -> bool:
        """Return whether two mutants edit the same place and cannot be applied together."""
        return self.path == other.path and self.start <= other.end and other.start <= self.end


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """Mutants that together were proven to fail under the gold patch."""

    mutants: tuple[Mutant, ...]
    must_fail: tuple[str, ...] = ()
    """Tests that failed (neither an error nor missing) in the proof and passed in the original run of the
    gold patch; empty if the rule reports no test names."""
    renamed: tuple[tuple[str, str], ...] = ()
    """Test names that differ in the mutated run: original, mutated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Results of runs of a row's gold patch."""

    content: str
    """Content hash of the row; a row that has changed has no reference."""
    outcomes: Mapping[str, TestOutcome] = field(default_factory=dict)
    """Test → outcome under the gold patch."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Path, relative to the workdir or absolute → original content at the start of the tests; only files
    with mutants."""
    variants: tuple[Variant, ...] = ()
    signs: tuple[str, ...] = ()
    """Signs of tampering in these runs. The project's own tests cause them: no evidence against patches."""
    coverage: Mapping[str, MutantKind | None] = field(default_factory=dict)
    """Test that a solution fixes → its best proven kind of mutant, None without any. Keyed by function if
    the rule reports no test names."""
    note: str = ""
    """Reason why there are no variants; empty if there are any."""
    problem: str = ""
    """Reason why the proof failed, which leaves the other fields empty; empty after success."""


class ReferenceStore(Protocol):
    """References of a dataset's rows, and marks of the rows in which tampering was caught."""

    async def load(self, row: TaskRow) -> Reference | None:
        """Return the reference of a row; None when there is none or the row has changed."""
        ...

    async def save(self, row: TaskRow, reference: Reference) -> None:
        """Store the reference of a row in place of an older one."""
        ...

    async def mark(self, row: TaskRow, run_id: str) -> None:
        """Remember that a run caught tampering in a row."""
        ...

    async def marks(self) -> Mapping[str, frozenset[str]]:
        """Return task id → runs that caught tampering in the row."""
        ...


def some_of_each_line(mutants: Iterable[Mutant | None]) -> Iterator[Mutant]:
    """Yield the first few mutants of each line of a function, in their order."""
    counts: Counter[int] = Counter()
    for mutant in mutants:
        if mutant is not None and counts[mutant.line] < _MAX_PER_LINE:
            counts[mutant.line] += 1
            yield mutant
        if counts.total() == _MAX_PER_FUNCTION:
            return


def variant_files(reference: Reference, variant: Variant) -> dict[str, bytes]:
    """Return path → content of every file of the reference, with a variant's mutants applied."""
    return {
        path: apply_mutants(content, [mutant for mutant in variant.mutants if mutant.path == path])
        for path, content in reference.files.items()
    }


def variant_row(row: TaskRow, variant: Variant) -> TaskRow:
    """Return the row of a mutated run; tests named after their expected values are renamed."""
    if not variant.renamed:
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
    """Return a command with tests renamed in one pass: a new name may be another test's old name."""
    spelled = {write(test): write(name) for test, name in names.items() for write in (str, shlex.quote)}
    longest = sorted(spelled, key=len, reverse=True)
    return re.sub("|".join(map(re.escape, longest)), lambda match: spelled[match[0]], command)


def apply_mutants(content: bytes, mutants: Sequence[Mutant]) -> bytes:
    """Return the content with the mutants' edits; all other bytes are unchanged.

    Raises:
        ValueError: two mutants overlap, or one is outside of the content.
    """
    parts: list[bytes] = []
    done = 0
    for mutant in sorted(mutants, key=lambda mutant: mutant.start):
        if not done <= mutant.start <= mutant.end <= len(content):
            raise ValueError(f"the mutant at bytes {mutant.start}-{mutant.end} of {mutant.path} does not fit")
        parts += [content[done : mutant.start], mutant.replacement.encode()]
        done = mutant.end
    return b"".join([*parts, content[done:]])
