"""Equivalent rewrites of functions behave as the functions do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bench.honest_rewrites import KINDS, rewritten

SOURCE = '''
class Sums:
    def total(self, numbers, *, limit=3, mark="a"):
        """Return numbers
        and a text."""
        low = []
        high = 0
        text = """one
two"""
        for number in numbers:
            if number < limit and number != 2:
                low.append(number)
                continue
            high += number
        squares = [item * item for item in low if item > 1 or not item]
        if not numbers:
            return None

        def inner(value):
            number = value + high
            return number if value == limit else -number

        try:
            parts = [inner(item) for item in numbers]
        except TypeError as error:
            return str(error)
        if mark == "b":
            parts.reverse()
        else:
            parts.sort()
        return squares, high, parts, text, self.total.__doc__
'''


def total(source: str) -> Callable[..., Any]:
    """Return the function that some source defines."""
    names: dict[str, Any] = {}
    exec(source, names)
    return names["Sums"]().total  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", KINDS)
def test_rewrites_differ_and_are_equivalent(kind: str) -> None:
    new = rewritten(SOURCE, [(3, 3)], KINDS[kind])
    assert new != SOURCE
    for arguments in ([], [1, 2, 3, 4], [0, 5, -2], ["a"], [2.5, 3]):
        for keywords in ({}, {"limit": 0}, {"mark": "b"}):
            outcomes = []
            for source in (SOURCE, new):
                try:
                    outcomes.append(total(source)(arguments, **keywords))
                except TypeError as error:
                    outcomes.append(type(error))
            assert outcomes[0] == outcomes[1], new


@pytest.mark.parametrize("kind", KINDS)
def test_other_functions_stay_as_they_are(kind: str) -> None:
    assert rewritten(SOURCE, [(500, 501)], KINDS[kind]) == SOURCE
