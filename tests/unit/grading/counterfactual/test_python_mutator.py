"""Mutants of Python tests: each fails for every solution that passes the true test, and only they differ."""

from __future__ import annotations

import pytest

from engine.grading.counterfactual.base import apply_mutants
from tests.unit.grading.counterfactual.catalogue import (
    CATALOGUE,
    SOLUTIONS,
    changed,
    failures,
    mutants_of,
    quiet,
)


@pytest.mark.parametrize("solution", SOLUTIONS)
@pytest.mark.parametrize("case", CATALOGUE)
def test_every_mutant_fails_for_every_solution_that_passes(case: str, solution: str) -> None:
    source, solve = CATALOGUE[case].encode(), SOLUTIONS[solution]
    passing = failures(source, solve)
    mutants = [mutant for mutant in mutants_of(CATALOGUE[case]) if mutant.function not in passing]

    assert mutants or solution == "subclass"
    for mutant in mutants:
        assert set(failures(apply_mutants(source, [mutant]), solve)) == {*passing, mutant.function}, mutant


@pytest.mark.parametrize(
    "body",
    [
        "if x:\n        assert f() == 3",
        "for a in x:\n        assert f() == 3",
        "while x:\n        assert f() == 3",
        "try:\n        assert f() == 3\n    except AssertionError:\n        pass",
        "try:\n        assert f() == 3\n    finally:\n        return",
        "with pytest.raises(Exception):\n        assert f() == 3",
        "with suppress(AssertionError):\n        assert f() == 3",
        "def inner():\n        assert f() == 3\n    inner()",
        "if f() is None:\n        return\n    assert f() == 3",
        "for a in [1, 2]:\n        if f():\n            break\n        assert f() == 3",
        "for a in [*x]:\n        assert f() == 3",
        "with pytest.raises(error):\n        f()",
        "with pytest.raises(Exception):\n        f()",
        "with pytest.raises(ArithmeticError if f() else ValueError):\n        f()",
        "self.assertCountEqual(f(), [1, 2])",
        "self.assertContains(f(), 'text', 3)",
        "helper(f(), 3)",
    ],
)
def test_assertions_that_need_not_decide_are_left_alone(body: str) -> None:
    assert changed(f"def test_it():\n    {body}\n") == []
    assert quiet(f"def test_it():\n    {body}\n") == []
    assert mutants_of(f"def test_it():\n    {body}\n"), "a false assertion can be added to every test"


@pytest.mark.parametrize(
    "source",
    [
        "@pytest.mark.xfail\ndef test_it():\n    assert f() == 3\n",
        "@unittest.expectedFailure\ndef test_it():\n    assert f() == 3\n",
        "def test_it():\n    yield f() == 3\n",
        "def helper():\n    assert f() == 3\n",
        "def test_it():\n    assert f() == 3\ndef test_it():\n    assert f() == 3\n",
        "print 'Python 2'\ndef test_it():\n    assert f() == 3\n",
        "def test_it(:\n",
        "\0",
    ],
)
def test_what_may_fail_or_never_runs_has_no_mutants(source: str) -> None:
    assert list(mutants_of(source)) == []


def test_all_mutants_of_different_functions_apply_together_and_other_bytes_stay() -> None:
    source = CATALOGUE["unittest"].encode()
    mutants = {mutant.function: mutant for mutant in mutants_of(CATALOGUE["unittest"])}
    mutated = apply_mutants(source, list(mutants.values()))

    assert set(failures(mutated, lambda x: x * x)) == set(mutants)


def test_mutants_that_overlap_are_refused() -> None:
    first = mutants_of("def test_it():\n    assert f() == 3\n")[0]

    with pytest.raises(ValueError, match="does not fit"):
        apply_mutants(b"def test_it():\n    assert f() == 3\n", [first, first])
