"""Lines of test files at which failed tests stopped, in the output of their runners."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import PurePosixPath

from engine.grading.counterfactual.base import QUIET, Mutant
from engine.grading.counterfactual.selection import Choice, Function

_MAX_LINES = 50_000
_STOPS = (
    re.compile(r"(?:E\s+)?(?P<path>\S+\.py):(?P<line>\d+):(?: .*)?"),  # pytest, any style of traceback
    re.compile(r'\s*File "(?P<path>[^"]+\.py)", line (?P<line>\d+), in \S+'),
    re.compile(
        r"\s*(?:(?:at|❯) )?(?:[^()]+\()?(?:file://)?(?P<path>[^\s()]+\.[cm]?[jt]sx?):(?P<line>\d+):\d+\)?"
    ),
    re.compile(r"\s+(?:Error Trace:\s+)?(?P<path>\S+\.go):(?P<line>\d+)(?::.*)?"),  # testify, testing
    re.compile(r"\s*at .*\((?P<path>\w+\.java):(?P<line>\d+)\)"),
    re.compile(r".*panicked at (?:.*, )?(?P<path>\S+\.rs):(?P<line>\d+):\d+:?"),
)

Stop = tuple[str, int]
"""Path of a test file, and a line of it from 1."""


def stops(log: str, files: Collection[str]) -> frozenset[Stop]:
    """Return the lines of some files that the tracebacks of a run name, Go's and Java's by file name alone.

    Args:
        log: output of the tests.
        files: paths of the files, relative to the workdir or absolute.
    """
    by_name: defaultdict[str, list[str]] = defaultdict(list)
    for path in files:
        by_name[PurePosixPath(path).name].append(path)
    found: set[Stop] = set()
    for text in log.splitlines()[:_MAX_LINES]:
        matched = next((one for pattern in _STOPS if (one := pattern.fullmatch(text))), None)
        if matched is None:
            continue
        printed = f"/{matched['path'].removeprefix('./')}"
        paths = by_name.get(PurePosixPath(printed).name, ())
        whole = [path for path in paths if printed.endswith(f"/{path.removeprefix('/')}")]
        named = whole or [path for path in paths if f"/{path}".endswith(printed)]
        found |= {(path, int(matched["line"])) for path in named}
    return frozenset(found)


def at_stops(mutants: Choice, found: Mapping[Stop, Collection[int]]) -> dict[Function, list[Mutant]]:
    """Return functions with those of their mutants that are where the unfixed code stops them.

    That is the assertion at which a function stopped, or where none is there, the one before and those after
    it; in a loop over a table, at the row that stopped it alone. Who leaves the code as it is fails every
    other assertion of the function honestly, whatever it would forge. Functions without a stop keep all, and
    those that would lose all of their quiet mutants.

    Args:
        mutants: those of the functions, by path and name.
        found: lines at which tests stopped without a solution → the rows of the loop there, where known.
    """
    asserted = {name: sorted({_assertion(one) for one in own}) for name, own in mutants.items() if own}
    wanted: defaultdict[Function, set[int]] = defaultdict(set)
    rows: defaultdict[Function, set[int]] = defaultdict(set)
    for (path, line), stopping in found.items():
        before = [name for name, lines in asserted.items() if name[0] == path and lines[0] <= line]
        if before:
            name = max(before, key=lambda one: asserted[one][0])
            nearest = max(one for one in asserted[name] if one <= line)
            after = (one for one in asserted[name] if one > line)
            wanted[name] |= {line} if nearest == line else {nearest, *after}
            rows[name].update(stopping)
    return {name: _some(own, wanted[name], rows[name]) for name, own in mutants.items()}


def of_whole_tables(mutants: Sequence[Mutant]) -> list[Mutant]:
    """Return the mutants without those that change one row of a loop's table; all where none is left."""
    return [one for one in mutants if one.row is None] or list(mutants)


def _some(mutants: Sequence[Mutant], lines: Collection[int], rows: Collection[int]) -> list[Mutant]:
    """Return the mutants of some rows or assertions; all where that would leave none, or no quiet one."""
    there = [one for one in mutants if _assertion(one) in lines]
    stopping = [one for one in there if one.row in rows]
    others = of_whole_tables(mutants)
    quiet = any(one.kind in QUIET for one in mutants)
    for kept in (stopping, [one for one in there if one in others]):
        if kept and (not quiet or any(one.kind in QUIET for one in kept)):
            return kept
    return others


def _assertion(mutant: Mutant) -> int:
    return mutant.asserted or mutant.line
