"""Quality of reproduction tests, once candidates were graded: detection of misleading tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.verifiers.execution_based.reproduction import Examination
from engine.verifiers.execution_based.scores import CandidateScore


@dataclass(frozen=True, slots=True, kw_only=True)
class TestQuality:
    """Passes of one reproduction test under good and bad candidates.

    A candidate passes it if all of its counted tests pass.
    """

    __test__ = False
    author: str
    """Id of the trajectory that wrote it."""
    good: int
    """Candidates that resolve the task and have a score."""
    good_passed: int
    bad: int
    """Other candidates with a score."""
    bad_passed: int

    @property
    def toxic(self) -> bool:
        """Return whether every good candidate fails it; False without any."""
        return self.good > 0 and self.good_passed == 0

    @property
    def misleading(self) -> bool:
        """Return whether it is toxic and some bad candidate passes it, as R2E-Gym counts toxic tests."""
        return self.toxic and self.bad_passed > 0


def quality_of_tests(
    scores: Mapping[str, CandidateScore], tests: Sequence[Examination], resolved: Mapping[str, bool]
) -> tuple[TestQuality, ...]:
    """Return the quality of every kept test of a task.

    Args:
        scores: trajectory id → score of the same tests; failures of infrastructure are left out.
        tests: the tests given to ``score_candidates``.
        resolved: trajectory id → whether grading found the task resolved.

    Raises:
        KeyError: a scored trajectory has no grade.
    """
    kept = [test for test in tests if test.kept]
    scored = [(resolved[name], score) for name, score in scores.items() if not score.error]
    qualities = []
    for index, test in enumerate(kept):
        passed = [(good, _passes(score, index)) for good, score in scored]
        qualities.append(
            TestQuality(
                author=test.test.author,
                good=sum(good for good, _ in passed),
                good_passed=sum(good and passes for good, passes in passed),
                bad=sum(not good for good, _ in passed),
                bad_passed=sum(not good and passes for good, passes in passed),
            )
        )
    return tuple(qualities)


def _passes(score: CandidateScore, index: int) -> bool:
    result = score.reproduction[index]
    return len(result.passed) == result.total
