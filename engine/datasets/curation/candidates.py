"""Selection and order of fault candidates, spread over functions and kinds; no file is in two splits."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce

import structlog

from engine.datasets.curation.baseline import Baseline
from engine.datasets.curation.faults import Fault, apply_fault, enumerate_faults
from engine.errors import HostileInputError
from engine.isolation import SOURCE_LIMITS, call_isolated

_log = structlog.get_logger(__name__)

MAX_TESTS = 24
"""Maximum number of tests per task; those that execute the suspect line come first."""
MIN_TESTS = 6
MIN_FUNCTION_LINES = 3
_TRIES_PER_FUNCTION = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A fault, or several in different functions of a file, that the tests may detect."""

    baseline: Baseline
    path: str
    source: str
    """Text of the intact file."""
    faults: tuple[Fault, ...]
    """In order of appearance; several once they are combined."""
    num_faults: int
    """Number of possible faults in the same functions, i.e. of suspect places."""
    tests: tuple[str, ...]

    @property
    def fault(self) -> Fault:
        """Return the first fault."""
        return self.faults[0]

    @property
    def mutated(self) -> str:
        """Return the text of the file with the faults."""
        # Backwards, because a fault may change the number of lines.
        return reduce(apply_fault, reversed(self.faults), self.source)

    @property
    def function(self) -> tuple[str, str, int]:
        """Return the identifier of the function among all sources."""
        return (self.baseline.source.spec, self.path, self.fault.function_first_line)


def find_candidates(
    baseline: Baseline, *, max_function_lines: int, kinds: Collection[str] = ()
) -> list[Candidate]:
    """Return faults on lines that stable tests execute and whose text is unique in the broken file.

    Files that are not UTF-8 are skipped, because agents' tools edit UTF-8 only; so are files that cannot be
    parsed within limits.

    Args:
        baseline: baseline of the intact tree's tests.
        max_function_lines: longer functions are skipped.
        kinds: fault kinds to use; empty uses every kind.
    """
    candidates = []
    for path, lines in sorted(baseline.executed_by.items()):
        try:
            source = (baseline.source.tree / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        enumerate_all = partial(enumerate_faults, source, max_function_lines=max_function_lines)
        try:
            faults = call_isolated(enumerate_all, SOURCE_LIMITS)
        except HostileInputError as error:
            _log.warning("source_left_out", path=path, reason=str(error))
            continue
        per_function = Counter(fault.function_first_line for fault in faults)
        for fault in faults:
            length = fault.function_last_line - fault.function_first_line + 1
            # An edit tool that replaces the suspect text must find it exactly once.
            unique = apply_fault(source, fault).count(fault.mutated.strip()) == 1
            wanted = not kinds or fault.kind in kinds
            if wanted and fault.line in lines and unique and length >= MIN_FUNCTION_LINES:
                candidate = Candidate(
                    baseline=baseline,
                    path=path,
                    source=source,
                    faults=(fault,),
                    num_faults=per_function[fault.function_first_line],
                    tests=relevant_tests(baseline, path, fault, fault.line),
                )
                candidates.append(candidate)
    return candidates


def relevant_tests(baseline: Baseline, path: str, fault: Fault, line: int) -> tuple[str, ...]:
    """Return at most ``MAX_TESTS`` tests of a fault's function; those that execute ``line`` come first."""
    lines = baseline.executed_by[path]
    chosen = dict.fromkeys(sorted(lines[line], key=lambda test: baseline.seconds[test])[:MAX_TESTS])
    # Tests of the function's other lines, which a fix must not break.
    for line in range(fault.function_first_line, fault.function_last_line + 1):
        for test in lines.get(line, ()):
            if len(chosen) >= MAX_TESTS:
                break
            chosen.setdefault(test)
    # A few more tests of the same files, which cover related code.
    files = {test.partition("::")[0] for test in chosen}
    for test in baseline.seconds:
        if len(chosen) >= MIN_TESTS:
            break
        if test.partition("::")[0] in files:
            chosen.setdefault(test)
    order = {test: number for number, test in enumerate(baseline.seconds)}
    return tuple(sorted(chosen, key=order.__getitem__))


def split_by_file(
    candidates: Sequence[Candidate], *, heldout_share: float, seed: int
) -> tuple[list[Candidate], list[Candidate]]:
    """Return training and held-out candidates; no file is in both.

    Args:
        candidates: all candidates.
        heldout_share: target share of held-out functions; 1.5 times as much is reserved (at most half),
            because files are indivisible and not every fault is detected.
        seed: seed of the choice of files.
    """
    functions = Counter(key[:2] for key in {candidate.function for candidate in candidates})
    files = sorted(functions)
    random.Random(seed).shuffle(files)
    wanted = min(0.5, 1.5 * heldout_share) * sum(functions.values())
    heldout: set[tuple[str, str]] = set()
    reserved = 0
    for file in files:
        if heldout_share > 0 and reserved + functions[file] <= max(wanted, min(functions.values())):
            heldout.add(file)
            reserved += functions[file]
    if len(heldout) == len(files):
        heldout.discard(files[-1])
    return (
        [candidate for candidate in candidates if candidate.function[:2] not in heldout],
        [candidate for candidate in candidates if candidate.function[:2] in heldout],
    )


class CandidateQueue:
    """Queue of candidates that spreads kinds and functions; deterministic under its seed.

    Each function yields one task; once all have been tried, functions may yield a second one.
    """

    def __init__(self, candidates: Sequence[Candidate], *, seed: int) -> None:
        self._kept: Counter[str] = Counter()
        self._kept_functions: Counter[tuple[str, str, int]] = Counter()
        by_function: dict[tuple[str, str, int], list[Candidate]] = {}
        for candidate in candidates:
            by_function.setdefault(candidate.function, []).append(candidate)
        generator = random.Random(seed)
        self._functions = sorted(by_function)
        generator.shuffle(self._functions)
        for choices in by_function.values():
            generator.shuffle(choices)
        self._by_function = by_function
        self._dealer = self._deal()

    def take(self, count: int) -> list[Candidate]:
        """Return up to ``count`` candidates of different functions to try next."""
        taken: list[Candidate] = []
        while len(taken) < count:
            candidate = next(self._dealer, None)
            if candidate is None:
                break
            taken.append(candidate)
            self._kept[candidate.fault.kind] += 1
        # They counted only to spread kinds within this batch; ``keep`` counts those that become tasks.
        for candidate in taken:
            self._kept[candidate.fault.kind] -= 1
        return taken

    def keep(self, candidate: Candidate) -> None:
        """Record that a candidate became a task."""
        self._kept[candidate.fault.kind] += 1
        self._kept_functions[candidate.function] += 1

    def left(self) -> list[Candidate]:
        """Return the candidates that were not taken."""
        return [candidate for function in self._functions for candidate in self._by_function[function]]

    def _deal(self) -> Iterator[Candidate]:
        for allowed in (1, 2):
            for _ in range(_TRIES_PER_FUNCTION):
                for function in self._functions:
                    choices = self._by_function[function]
                    if choices and self._kept_functions[function] < allowed:
                        yield choices.pop(self._rarest(choices))

    def _rarest(self, choices: Sequence[Candidate]) -> int:
        return min(range(len(choices)), key=lambda number: self._kept[choices[number].fault.kind])
