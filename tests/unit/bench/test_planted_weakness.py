"""Tasks become weaker by the removal of assertions of the tests that the solution fixes."""

from __future__ import annotations

import ast
from dataclasses import replace

from bench.strength import removable_assertions, weakened
from tests.builders.rollout_builders import make_row

TESTS = """
class TestSums:
    def test_total(self):
        assert total([1]) == 1
        if True: assert total([]) == 0
        self.assertEqual(
            total([2, 3]),
            5,
        )


def test_single():
    assert total([4]) == 4


def test_other():
    assert other() == 1
    assert other() == 2
"""


def test_assertions_are_removed_from_fixed_tests_with_several() -> None:
    row = make_row()
    answer = replace(
        row.answer,
        test_files={"t.py": TESTS},
        fail_to_pass=("t.py::TestSums::test_total[a]", "t.py::TestSums::test_total[b]", "t.py::test_single"),
    )
    row = replace(row, answer=answer)
    assertions = removable_assertions(row)
    assert sorted(each.line for each in assertions) == [4, 5, 6]
    assert {each.test for each in assertions} == {"t.py::TestSums::test_total"}
    text = weakened(row, assertions).answer.test_files["t.py"]
    tests = {node.name: node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)}
    assert not any(isinstance(node, ast.Call) for node in ast.walk(tests["test_total"]))
    assert [ast.unparse(tests[name]).count("assert") for name in ("test_single", "test_other")] == [1, 2]
    assert (
        "total([2, 3])"
        in weakened(row, [each for each in assertions if each.line != 6]).answer.test_files["t.py"]
    )
