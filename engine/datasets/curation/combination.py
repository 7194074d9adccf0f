"""Combination of proven faults of one file into the fault of one task, after SWE-smith's combined bugs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, zip_longest

from engine.datasets.curation.candidates import MAX_TESTS, Candidate
from engine.datasets.curation.injected import DetectedFault
from engine.datasets.curation.measurements import NOT_KEPT, Trial


@dataclass(slots=True)
class Combiner:
    """Detected faults that wait for others in different functions of the same file.

    Args:
        size: number of faults to combine.
    """

    size: int
    waiting: list[DetectedFault] = field(default_factory=list)

    def add(self, detected: DetectedFault) -> list[DetectedFault]:
        """Return the faults to combine with this one and itself; empty while there are too few."""
        self.waiting.append(detected)
        file = detected.candidate.function[:2]
        of_function: dict[tuple[str, str, int], DetectedFault] = {}
        for fault in self.waiting:
            if fault.candidate.function[:2] == file:
                of_function.setdefault(fault.candidate.function, fault)
        group = list(of_function.values())
        if len(group) < self.size:
            return []
        self.waiting = [fault for fault in self.waiting if fault not in group]
        return group


def combine(group: Sequence[DetectedFault]) -> Candidate:
    """Return the candidate that has all faults of a group.

    Its tests are at most ``MAX_TESTS``: tests that fail with each fault alone, then others of each in turn.
    """
    members = sorted((fault.candidate for fault in group), key=lambda candidate: candidate.fault.line)
    share = MAX_TESTS // len(group)
    tests = dict.fromkeys(test for fault in group for test in fault.failing[:share])
    for test in filter(None, chain.from_iterable(zip_longest(*(member.tests for member in members)))):
        if len(tests) < MAX_TESTS:
            tests.setdefault(test)
    baseline = members[0].baseline
    return replace(
        members[0],
        faults=tuple(member.fault for member in members),
        num_faults=sum(member.num_faults for member in members),
        tests=tuple(test for test in baseline.seconds if test in tests),
    )


def problem_of(group: Sequence[DetectedFault], trial: Trial) -> str:
    """Return why the combination of a group makes no task; empty if it makes one.

    Every fault alone must fail a test that the combination fails: else a submission that leaves the fault in
    could pass, or its test could pass for another reason.
    """
    if trial.problem:
        return trial.problem if trial.problem in NOT_KEPT else "combination"
    return "" if all(set(trial.failing).intersection(fault.failing) for fault in group) else "inert"
