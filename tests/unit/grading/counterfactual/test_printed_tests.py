"""Failed tests that runners print, and the functions that are false where no test has a name."""

from __future__ import annotations

import random
from collections.abc import Collection

import pytest

from engine.grading.counterfactual.base import MutantKind, Reference, Variant
from engine.grading.counterfactual.printed_tests import failed_tests
from engine.grading.counterfactual.proof import Unfixed, prove
from engine.grading.counterfactual.selection import Choice, one_function_each
from engine.grading.execution import RunResult
from engine.types import Verdict
from tests.unit.grading.counterfactual.test_proof import ROW, run

SOURCE = b"""
const test = require("node:test");
const assert = require("node:assert");
test("clamps above", () => { assert.strictEqual(clamp(12), 10); });
test("clamps below", () => { assert.strictEqual(clamp(-1), 0); });
test("keeps others", () => { assert.strictEqual(clamp(5), 5); });
"""
PATH = "test/clamp.test.js"


@pytest.mark.parametrize(
    ("log", "names"),
    [
        ("TAP version 13\nok 1 - below\nnot ok 2 - clamps above\nnot ok 3 # TODO\n1..3\n", ["clamps above"]),
        (
            "  clamp\n    \x1b[32m✔\x1b[0m below (1ms)\n    \x1b[31m✖ clamps above (2.5ms)\x1b[0m\n",
            ["clamps above"],
        ),
        ("FAIL src/clamp.test.js\n  ● clamp › above\n  ✓ below (1 ms)\n", ["clamp › above"]),
        ("  1) clamps above:\n     AssertionError\n", ["clamps above"]),
        ("--- PASS: TestBelow (0.00s)\n--- FAIL: TestAbove/ten (0.00s)\nFAIL\n", ["TestAbove/ten"]),
        ("test clamp::above ... FAILED\ntest clamp::below ... ok\n", ["clamp::above"]),
        ("FAIL: test_above (tests.C)\nFAILED (failures=1)\n", ["test_above (tests.C)", "(failures=1)"]),
        ('  File "tests/run.py", line 9, in test_above\n    assert x\n', ["test_above"]),
        ("ClampTest > above() FAILED\nClampTest > below() PASSED\n", ["ClampTest > above()"]),
        ("[ERROR]   ClampTest.above:12 expected 10\n[ERROR] Tests run: 2\n", ["ClampTest.above"]),
        ("test_above ... ok\nall good\n0 failed\n12 failed\n", []),
    ],
)
def test_failed_tests_are_read_from_what_runners_print(log: str, names: list[str]) -> None:
    assert failed_tests(log) == names


async def proven(fixed: Collection[str], *, reward: float = 0.0) -> Reference:
    """Return the reference of a row whose runner printed names; one false test leaves a reward."""

    async def execute(_reference: Reference, variant: Variant) -> RunResult:
        false = {mutant.function for mutant in variant.mutants}
        return run(Verdict.FAILED, reward if len(false) == 1 else 0.0)

    return await prove(
        ROW, run(Verdict.PASSED), {PATH: SOURCE}, execute, unfixed=Unfixed(failing=frozenset(fixed))
    )


async def test_one_function_that_needs_a_solution_is_false_where_the_runner_prints_which() -> None:
    reference = await proven({"clamps above", "clamps below", "AssertionError"})
    false = [[mutant.function for mutant in variant.mutants] for variant in reference.variants]
    assert [len(names) for names in false] == [1, 1, 1]
    assert {name for (name,) in false} == {"clamps above", "clamps below"}


async def test_several_functions_are_false_where_nothing_is_printed_or_one_leaves_a_reward() -> None:
    for reference in (await proven(()), await proven({"clamps above"}, reward=0.5)):
        assert all(len(variant.mutants) == 3 for variant in reference.variants)
        assert len(reference.variants) == 3


def test_each_function_has_its_turn() -> None:
    choice: Choice = {("a", str(number)): () for number in range(5)}
    kinds = [(MutantKind.VALUE, choice)] * 3
    found = one_function_each(kinds, {("a", "1"), ("a", "2"), ("a", "4")}, random.Random(1))
    assert {name for _, one in found for name in one} == {("a", "1"), ("a", "2"), ("a", "4")}
    assert one_function_each(kinds, set(), random.Random(1)) == []
