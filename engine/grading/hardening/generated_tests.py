"""Generated test file: one test function for each observed call, with literals only."""

from __future__ import annotations

import re
from collections.abc import Sequence

from engine.grading.hardening.inputs import Observation
from engine.grading.hardening.literals import has_floats, render
from engine.python_syntax import python_literal

_HEAD = '"""Results of the solution on recorded and nearby inputs."""\n'
_NOT_WORD = re.compile(r"\W", re.ASCII)


def is_comparable(observation: Observation) -> bool:
    """Return whether the result can be asserted: floats inside of containers may differ by rounding."""
    value = python_literal(observation.value)
    return isinstance(value, float) or not has_floats(value)


def generated_name(observation: Observation) -> str:
    """Return the name of an observation's test function; it depends on the call alone."""
    return f"test_{_NOT_WORD.sub('_', observation.call.function)}_{observation.call.key}"


def write_test_file(observations: Sequence[Observation]) -> str:
    """Return the source of a test file.

    The tested function is imported in the test: a missing one must not fail the other tests.
    """
    return _HEAD + "".join(map(_test, observations))


def _test(observation: Observation) -> str:
    call, value = observation.call, python_literal(observation.value)
    words = [render(argument) for argument in python_literal(call.arguments)]
    words += [f"{name}={render(argument)}" for name, argument in python_literal(call.keywords).items()]
    result = f"{call.function}({', '.join(words)})"
    result = f"list({result})" if observation.iterator else result
    lines = [f"from {call.module} import {call.function}", ""]
    if isinstance(value, float):
        lines = ["import pytest", *lines, f"assert {result} == pytest.approx({observation.value})"]
    elif value is None:
        lines.append(f"assert {result} is None")
    else:
        lines.append(f"assert {result} == {observation.value}")
    body = "\n".join(f"    {line}" if line else "" for line in lines)
    return f"\n\ndef {generated_name(observation)}():\n{body}\n"
