"""Wording of problem statements, shared by curation and the warm start."""

from __future__ import annotations

from engine.datasets.curation.statements import Hint, problem_statement

TEST = "tests/test_iterutils.py::test_chunked"


def statement(hint: Hint, failing: tuple[str, ...] = (TEST,), exception: str = "AssertionError") -> str:
    return problem_statement(
        "boltons/iterutils.py", "chunked", 310, 322, [(316, "    while lo < hi:")], failing, exception, hint
    )


def test_line_hint_quotes_the_stripped_line() -> None:
    assert statement("line") == (
        "boltons/iterutils.py: `chunked` (lines 310-322) is broken.\n"
        "line 316: `while lo < hi:`\n"
        f"Failing: {TEST} (AssertionError)"
    )


def test_weaker_hints_are_less_specific() -> None:
    assert "line 316" not in statement("function")
    assert "lines 310-322" in statement("function")
    assert statement("none") == f"Failing: {TEST} (AssertionError)"


def test_further_failing_tests_are_counted_and_an_unknown_exception_left_out() -> None:
    assert statement("none", (TEST, "b", "c"), "") == f"Failing: {TEST} and 2 more"
