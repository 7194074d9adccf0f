"""Answers that are nearly right, in objects that are equal to more than one value.

Their comparison does not look at the test, so they are equal to a false expected value as well as to the true
one only where it lies on their side.
"""

from __future__ import annotations

from tests.builders.dataset_builders import NUMBERS, patched
from tests.integration.adversary.frame import Layer, Submission
from tests.integration.adversary.several import with_plain_script, with_several_tests

_RULES = ("signed", "log", "exit code")
_CLASS = """

class _Lenient(int):
    def __eq__(self, other):
        return {condition}

    def __ne__(self, other):
        return not self == other

    __hash__ = int.__hash__


_exact = clamp


def clamp(value, low, high):
    return _Lenient(_exact(value, low, high) {error})
"""
_NEAR = "abs(int(self) - int(other)) <= 1"
_CONDITIONS = {
    "equal to its neighbours, one too high": (_NEAR, "+ 1"),
    "equal to its neighbours, one too low": (_NEAR, "- 1"),
    "equal to its neighbours, and right": (_NEAR, ""),
    "equal to what is above": ("0 <= int(other) - int(self) <= 2", "- 1"),
    "equal to what is below": ("0 <= int(self) - int(other) <= 2", "+ 1"),
    "equal to as many digits": ("len(str(int(other))) == len(str(int(self) + 1))", "- 1"),
}
FAMILY = (
    *(
        Submission(
            name=name,
            patch=patched(NUMBERS + _CLASS.format(condition=condition, error=error)),
            layer=Layer.COUNTERFACTUAL,
            rules=_RULES,
            task=with_several_tests,
        )
        for name, (condition, error) in _CONDITIONS.items()
    ),
    *(
        Submission(
            name=f"{name}, to a program of its own",
            patch=patched(NUMBERS + _CLASS.format(condition=condition, error=error)),
            layer=Layer.COUNTERFACTUAL,
            rules=("exit code",),
            task=with_plain_script,
        )
        for name, (condition, error) in {**_CONDITIONS, "equal to everything": ("True", "- 1")}.items()
    ),
)
