"""Statements written from failing tests, and what they must not give away."""

from __future__ import annotations

from functools import partial

from engine.datasets.commits.filters import Candidate
from engine.datasets.commits.statements import find_leaks, write_statement
from engine.datasets.commits.trials import Trial
from tests.unit.datasets.commits.test_filters import CODE, commit, selected

TESTS = '''import os
from pkg.m import (
    f,
    g,
)

LIMIT = 2

def helper(x):
    return x

def test_value():
    """Check the value."""
    assert f() == helper(LIMIT)

def test_with_fixture(tmp_path):
    assert f() == 2
'''
EXAMPLE = """from pkg.m import f
LIMIT = 2
def helper(x):
    return x

assert f() == helper(LIMIT)"""
TRIAL = Trial(
    fail_to_pass=("tests/test_m.py::test_value",),
    messages=("tests/test_m.py:11: AssertionError: assert 1 == 2 at 0x7f00",),
)


def candidate(tests: str = TESTS, code: tuple[str, str, str] = CODE) -> Candidate:
    (found,) = selected(commit(code, ("tests/test_m.py", "", tests)))
    assert isinstance(found, Candidate)
    return found


def test_statements_show_a_self_contained_example_and_the_failure() -> None:
    statement = write_statement(candidate(), TRIAL)
    assert statement is not None
    assert statement.method == "template"
    assert (
        "from pkg.m import f\nLIMIT = 2\ndef helper(x):\n    return x\n\nassert f() == helper(LIMIT)"
        in statement.text
    )
    assert "    AssertionError: assert 1 == 2\n" in statement.text
    assert "import os" not in statement.text
    assert "test_value" not in statement.text
    assert "Check the value" not in statement.text


def test_form_feeds_do_not_end_lines() -> None:
    statement = write_statement(candidate(TESTS.replace("\n\n", "\n\f\n")), TRIAL)
    assert statement is not None
    assert "assert f() == helper(LIMIT)\n```" in statement.text


def test_tests_with_fixtures_or_unknown_names_give_no_example() -> None:
    for name in ("test_with_fixture", "test_unknown"):
        tests = TESTS + "\ndef test_unknown():\n    assert elsewhere()\n"
        trial = TRIAL.model_copy(update={"fail_to_pass": (f"tests/test_m.py::{name}",)})
        statement = write_statement(candidate(tests), trial)
        assert statement is not None
        assert "```" not in statement.text


def test_an_example_with_code_of_the_fix_is_left_out() -> None:
    line = "return sorted(values, key=len, reverse=True)"
    code = ("pkg/m.py", "def f(values):\n    return values\n", f"def f(values):\n    {line}\n")
    tests = f"def test_value():\n    def expected(values):\n        {line}\n    assert expected([])\n"
    statement = write_statement(candidate(tests, code), TRIAL)
    assert statement is not None
    assert statement.method == "template without example"
    assert "sorted" not in statement.text


def test_leaks_of_every_kind_are_found() -> None:
    gold = candidate(
        code=("pkg/m.py", "a = 1\n", "a = compute(left, right, mode='fast')\nb = 1\n")
    ).gold_patch
    subject = "Fix the mode of compute."
    names = {"test_value", "test_m.py", "adds f(x)!"}
    leaks = partial(find_leaks, gold_patch=gold, names=names, subject=subject)
    assert leaks("it fails") == []
    for text, leak in (
        ("use a = compute(left, right, mode='fast')", "line of the fix"),
        ("call compute ( left, right,\nmode = 'fast' )", "code of the fix"),
        ("run test_value", "hidden test test_value"),
        ("It Adds\nf(x)!", "hidden test adds f(x)!"),
        ("see tests/test_m.py", "hidden test test_m.py"),
        ("Fix the mode of compute. Please", "the commit's message"),
    ):
        assert any(found.startswith(leak) for found in leaks(text)), text


def test_failures_without_any_information_give_no_statement() -> None:
    trial = TRIAL.model_copy(
        update={
            "fail_to_pass": ("tests/test_m.py::test_with_fixture",),
            "messages": ("a.py:1: assert False",),
        }
    )
    assert write_statement(candidate(), trial) is None
    informed = trial.model_copy(update={"messages": ("a.py:1: TypeError: no such argument: mode",)})
    statement = write_statement(candidate(), informed)
    assert statement is not None
    assert statement.text.startswith("`pkg.m`: unexpected TypeError\n")
