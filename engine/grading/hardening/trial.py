"""A task with additional tests: candidates, the choice among them, and the hardened task."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import islice, zip_longest

from pydantic import BaseModel, ConfigDict

from engine.datasets.store import with_content_id
from engine.grading.hardening.generated_tests import generated_name, write_test_file
from engine.grading.hardening.inputs import Observation
from engine.grading.hardening.recording import Observed
from engine.types import TaskRow


class Hardening(BaseModel):
    """Result of one task."""

    model_config = ConfigDict(frozen=True)
    reason: str = ""
    """Reason why the task stays as it is; empty if it was hardened."""
    detail: str = ""
    path: str = ""
    """Path of the additional test file."""
    text: str = ""
    fail_to_pass: tuple[str, ...] = ()
    pass_to_pass: tuple[str, ...] = ()
    wrong_patches: int = 0
    rejected_before: int = 0
    rejected_after: int = 0
    tried: int = 0
    """Number of observations that were tried as tests."""
    failed_on_solution: int = 0
    failed_on_alternatives: int = 0
    passed: tuple[str, ...] = ()
    """Details of the wrong patches that the task's own tests let pass."""
    alternatives: int = 0
    """Number of honest alternatives on which the tests were tried."""
    seconds: float = 0.0

    @property
    def tests(self) -> tuple[str, ...]:
        """Return the node ids of the additional tests."""
        return (*self.fail_to_pass, *self.pass_to_pass)


class Trial:
    """A task with tests of observations.

    Args:
        row: the task.
        path: of the test file.
        observations: one for each test.
    """

    def __init__(self, row: TaskRow, path: str, observations: Sequence[Observation]) -> None:
        self.row, self.path = row, path
        self.observations = tuple(observations)
        self.tests = [f"{path}::{generated_name(observation)}" for observation in observations]
        """Node ids."""

    def only(self, tests: Collection[str]) -> list[Observation]:
        """Return the observations of some tests."""
        return [each for each, test in zip(self.observations, self.tests, strict=True) if test in tests]

    def candidate(self, order: Sequence[str] = ()) -> TaskRow:
        """Return the task with all of the tests, in an order."""
        text = write_test_file(self.observations)
        return with_tests(self.row, self.path, text, pass_to_pass=self.tests, selection=order)


def preferences(observed: Observed) -> dict[Observation, int]:
    """Return how early observations are to become tests, 0 first, without those that must not become one.

    Recorded inputs go first, then nearby ones whose result the solution does not change: another honest
    solution may not share other results. An exception that only the solution raises, for a nearby input, is
    asserted only where a recorded call of the function raises it, too.
    """
    raised = {_raised(each) for each in observed.observations if not each.call.nearby}
    ranks = {}
    for each in observed.observations:
        if not each.call.nearby:
            ranks[each] = 0
        elif each not in observed.changed:
            ranks[each] = 1
        elif each.form != "raises" or _raised(each) in raised:
            ranks[each] = 2
    return ranks


def choose_candidates(
    ranks: Mapping[Observation, int], differing: Sequence[Collection[Observation]], limit: int
) -> list[Observation]:
    """Return observations to try as tests: the preferred ones that differ with each wrong patch, in turn."""
    preferred = sorted(ranks, key=ranks.__getitem__)
    turns = zip_longest(*([each for each in preferred if each in found] for found in differing))
    distinct = dict.fromkeys(each for turn in turns for each in turn if each is not None)
    return list(islice(distinct, limit))


def choose_tests(
    tested: Sequence[Observation],
    ranks: Mapping[Observation, int],
    differing: Sequence[Collection[Observation]],
    limit: int,
) -> list[Observation]:
    """Return the fewest observations, found greedily, of which one differs with each wrong patch.

    Preferred ones go first. Further recorded inputs follow up to the limit.

    Args:
        tested: observations that tests may assert.
        ranks: their preferences.
        differing: observations that differ with each wrong patch.
        limit: maximum number.
    """
    left = [useful for found in differing if (useful := [each for each in tested if each in found])]
    chosen: dict[Observation, None] = {}
    while left and len(chosen) < limit:
        counts = Counter(each for useful in left for each in useful)
        best = min(counts, key=lambda each: (ranks[each], -counts[each]))
        chosen[best] = None
        left = [useful for useful in left if best not in useful]
    more = [each for each in tested if ranks[each] == 0 and each not in chosen]
    return [*chosen, *more][:limit]


def _raised(observation: Observation) -> tuple[str, str, str, str]:
    """Return the function and the outcome of a call, without its arguments."""
    call = observation.call
    return call.module, call.name, observation.form, observation.value


def with_tests(
    row: TaskRow,
    path: str,
    text: str,
    *,
    fail_to_pass: Sequence[str] = (),
    pass_to_pass: Sequence[str] = (),
    selection: Sequence[str] = (),
) -> TaskRow:
    """Return a task with a further test file.

    Args:
        row: the task.
        path, text: of the file.
        fail_to_pass, pass_to_pass: node ids of its tests.
        selection: node ids to run, in this order; empty runs the file.
    """
    words = " ".join(map(shlex.quote, selection or (path,)))
    answer = replace(
        row.answer,
        test_files={**row.answer.test_files, path: text},
        fail_to_pass=(*row.answer.fail_to_pass, *fail_to_pass),
        pass_to_pass=(*row.answer.pass_to_pass, *pass_to_pass),
        test_command=f"{row.answer.test_command} {words}",
    )
    return replace(row, answer=answer)


def hardened_row(row: TaskRow, result: Hardening) -> TaskRow:
    """Return a new version of a task with the tests of a result; its metadata names them.

    The record of an earlier hardening is kept as ``earlier``.
    """
    added = with_tests(
        row, result.path, result.text, fail_to_pass=result.fail_to_pass, pass_to_pass=result.pass_to_pass
    )
    record = result.model_dump(mode="json", exclude={"reason", "detail", "text", "seconds", "passed"})
    if earlier := row.answer.metadata.get("hardening"):
        record["earlier"] = earlier
    metadata = {**row.answer.metadata, "hardening": {"of": row.task.id, **record}}
    return with_content_id(replace(added, answer=replace(added.answer, metadata=metadata)))
