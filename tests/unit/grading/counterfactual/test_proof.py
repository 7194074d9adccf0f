"""Proof of variants where the rule knows no tests by name: only what fails for every solution is kept."""

from __future__ import annotations

import pytest

from engine.grading.counterfactual.base import Reference, Variant
from engine.grading.counterfactual.proof import prove
from engine.grading.evidence import Evidence, Judgement
from engine.grading.execution import RunResult, unjudged
from engine.types import GradeRule, Task, TaskAnswer, TaskRow, Verdict

TEST = b"from lib import f\ndef test_a():\n    assert f() == 3\n"
ROW = TaskRow(
    task=Task(id="1", instance_id="1", repo="", image="", base_commit="", problem_statement=""),
    answer=TaskAnswer(grade_rule=GradeRule.EXIT_CODE, gold_patch=""),
    split="train",
)


def run(verdict: Verdict, reward: float | None = None) -> RunResult:
    judgement = Judgement(passed=verdict is Verdict.PASSED, tests=(), reward=reward)
    return RunResult(
        verdict=verdict, applied=unjudged(verdict, "").applied, evidence=Evidence(), judgement=judgement
    )


async def proven(test: bytes, *, reward: float | None) -> Reference:
    """Return the reference of a row with one test file, whose false runs end with a reward."""

    async def execute(_reference: Reference, _variant: Variant) -> RunResult:
        return run(Verdict.FAILED, reward)

    return await prove(ROW, run(Verdict.PASSED), {"tests/test_a.py": test}, execute, fixed=())


@pytest.mark.parametrize(("reward", "variants"), [(None, 3), (0.0, 3), (0.9, 0)])
async def test_variants_that_keep_a_part_of_the_reward_are_left_out(
    reward: float | None, variants: int
) -> None:
    """A reward such as ``min(1, passed / 10)`` is whole for a solution that passes an eleventh test."""
    assert len((await proven(TEST, reward=reward)).variants) == variants


@pytest.mark.parametrize(
    "line",
    [
        b"@pytest.mark.skipif(not lib.HAS_F, reason='')",
        b"lib = pytest.importorskip('lib')",
        b"@skipUnless(x)",
    ],
)
async def test_files_whose_tests_may_be_skipped_stay_true(line: bytes) -> None:
    reference = await proven(TEST.replace(b"def", line + b"\ndef"), reward=None)
    assert reference.variants == ()
    assert "no test of the row can be made false" in reference.note
