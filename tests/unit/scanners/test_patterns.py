"""Regular expressions of people: matches, refusals, and the limit of time."""

from __future__ import annotations

import pytest

from engine.errors import HostileInputError
from engine.scanners import patterns
from engine.scanners.rules import Hit


def test_matching_steps_are_returned_with_an_excerpt() -> None:
    texts = [(0, "nothing"), (4, "x" * 50 + " It SHOULD work " + "y" * 50), (7, "should")]
    first, second = patterns.scan(r"\bshould\b", texts)
    assert first == Hit(4, "x" * 36 + " It SHOULD work " + "y" * 34)
    assert second == Hit(7, "should")
    assert len(patterns.scan(".", [(n, "a") for n in range(1_000)])) == patterns.MOST_HITS
    assert patterns.scan("$", [(0, "")]) == [Hit(0, "")]


@pytest.mark.parametrize("pattern", ["(", "", "a" * 501, "(?<n>a)", "a{99999999999999999999}"])
def test_other_texts_are_refused(pattern: str) -> None:
    with pytest.raises(patterns.PatternError):
        patterns.check(pattern)


def test_exponential_expressions_are_stopped() -> None:
    with pytest.raises(HostileInputError, match="the expression took more than 2 s"):
        patterns.scan(r"(a+)+$", [(0, "a" * 60 + "b")])
    assert patterns.scan("b", [(0, "b")]) == [Hit(0, "b")], "the next search has a fresh process"
