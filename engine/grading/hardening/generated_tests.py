"""Generated test file: one test function for each observed call, with literals only."""

from __future__ import annotations

import re
from collections.abc import Sequence

from engine.grading.hardening.inputs import Observation, Step
from engine.grading.hardening.literals import has_floats, render
from engine.python_syntax import python_literal

_HEAD = '"""Results of the solution on recorded and nearby inputs."""\n'
_NOT_WORD = re.compile(r"\W", re.ASCII)
_UNSTABLE = re.compile(r" at 0x[0-9a-fA-F]|\d\.\d|\d[eE][-+]?\d")
"""Addresses, and numbers that may differ by rounding, in a description."""


def is_comparable(observation: Observation) -> bool:
    """Return whether the result can be asserted: floats inside of others may differ by rounding."""
    value = python_literal(observation.value)
    if observation.form == "repr":
        return _UNSTABLE.search(value) is None
    return isinstance(value, float) or not has_floats(value)


def generated_name(observation: Observation) -> str:
    """Return the name of an observation's test function; it depends on the call alone."""
    return f"test_{_NOT_WORD.sub('_', observation.call.name)}_{observation.call.key}"


def write_test_file(observations: Sequence[Observation]) -> str:
    """Return the source of a test file.

    The tested function is imported in the test: a missing one must not fail the other tests.
    """
    return _HEAD + "".join(map(_test, observations))


def _test(observation: Observation) -> str:
    call = observation.call
    *earlier, last = call.steps
    imports = [f"from {call.module} import {call.steps[0].name.partition('.')[0]}"]
    lines, owner = [], ""
    for step in earlier:
        lines.append(f"value = {_source(owner, step)}" if step.returns else _source(owner, step))
        owner = "value."
    result = _source(owner, last)
    if observation.of_object:
        lines.append(result)
        result = "value"
    more, checks = _checks(observation, result)
    body = "\n".join(f"    {line}" if line else "" for line in [*imports, *more, "", *lines, *checks])
    return f"\n\ndef {generated_name(observation)}():\n{body}\n"


def _source(owner: str, step: Step) -> str:
    if not step.arguments:
        return f"{owner}{step.name}"
    words = [render(argument) for argument in python_literal(step.arguments)]
    words += [f"{name}={render(argument)}" for name, argument in python_literal(step.keywords).items()]
    return f"{owner}{step.name}({', '.join(words)})"


def _checks(observation: Observation, result: str) -> tuple[list[str], list[str]]:
    """Return imports and statements that compare a result with the observed one."""
    value = python_literal(observation.value)
    if observation.form == "raises":
        module, _, name = value.partition(":")
        imports = ["import pytest", f"from {module} import {name} as Expected"]
        return imports, ["with pytest.raises(Expected):", f"    {result}"]
    if observation.form == "attributes":
        compared = [_equal(f"value.{name}", part) for name, part in value.items()]
        return [], [*([] if result == "value" else [f"value = {result}"]), *compared]
    if isinstance(value, float):
        return ["import pytest"], [f"assert {result} == pytest.approx({observation.value})"]
    result = {"items": f"list({result})", "repr": f"repr({result})"}.get(observation.form, result)
    return [], [_equal(result, value)]


def _equal(result: str, value: object) -> str:
    return f"assert {result} is None" if value is None else f"assert {result} == {render(value)}"
