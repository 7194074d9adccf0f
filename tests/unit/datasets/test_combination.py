"""Combination of detected faults: groups of one file, their tests, and faults that hide each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.datasets.curation.baseline import Baseline
from engine.datasets.curation.candidates import Candidate, find_candidates
from engine.datasets.curation.combination import Combiner, combine, problem_of
from engine.datasets.curation.injected import DetectedFault
from engine.datasets.curation.measurements import Trial
from engine.datasets.sources.fetch import Source

FUNCTION = "def {name}(left, right):\n    total = left + {number}\n    return total < right\n\n\n"
TESTS = tuple(f"t.py::{number}" for number in range(60))


@pytest.fixture
def candidates(tmp_path: Path) -> list[Candidate]:
    """Faults of three functions in ``a.py`` and one in ``b.py``, each executed by 20 tests of its own."""
    (tmp_path / "a.py").write_text("".join(FUNCTION.format(name=f"f{n}", number=n) for n in range(3)))
    (tmp_path / "b.py").write_text(FUNCTION.format(name="g", number=9))
    source = Source(
        spec="toy", name="toy", revision="1", tree=tmp_path, packages=(), roots=(".",), tests=(),
        requirements=(),
    )  # fmt: skip
    lines = {3 + 5 * n: TESTS[20 * n : 20 * n + 20] for n in range(3)}
    baseline = Baseline(
        source=source, image="toy-1", toolchain=tmp_path, seconds=dict.fromkeys(TESTS, 0.1),
        executed_by={"a.py": lines, "b.py": {3: TESTS[:20]}},
    )  # fmt: skip
    return find_candidates(baseline, max_function_lines=9, kinds=["compare_flip"])


def detected(candidate: Candidate) -> DetectedFault:
    return DetectedFault.of(candidate, Trial(candidate.tests[:15], "AssertionError"))


def test_faults_of_different_functions_of_a_file_are_combined(candidates: list[Candidate]) -> None:
    combiner = Combiner(2)
    by_function = {candidate.function[1:]: candidate for candidate in candidates}
    first, second, third, other = (detected(candidate) for _, candidate in sorted(by_function.items()))
    same = next(
        detected(c) for c in candidates if c.function == third.candidate.function and c != third.candidate
    )
    assert [combiner.add(fault) for fault in (third, other, same, first)] == [[], [], [], [third, first]]
    assert combiner.add(second) == [same, second]
    assert combiner.waiting == [other]
    combined = combine([third, first])
    assert [fault.function for fault in combined.faults] == ["f0", "f2"]
    assert combined.mutated.count("<=") + combined.mutated.count(">") == 2
    assert set(combined.tests) >= {*first.failing[:12], *third.failing[:12]}
    assert len(combined.tests) == 24


def test_a_fault_that_the_others_hide_makes_no_task(candidates: list[Candidate]) -> None:
    group = [detected(candidates[0]), detected(candidates[2])]
    failing = (group[0].failing[0], group[1].failing[3])
    assert problem_of(group, Trial(failing)) == ""
    assert problem_of(group, Trial(failing[:1])) == "inert"
    assert problem_of(group, Trial(problem="unnoticed")) == "combination"
    for problem in ("machine", "sandbox", "no_report"):
        assert problem_of(group, Trial(problem=problem)) == problem
