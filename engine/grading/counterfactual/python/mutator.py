"""Mutants of a Python test file: functions and methods of pytest and ``unittest``."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from engine.grading.counterfactual.base import Mutant
from engine.grading.counterfactual.python.added import added_mutants
from engine.grading.counterfactual.python.conditions import condition_mutants
from engine.grading.counterfactual.python.functions import test_functions
from engine.grading.counterfactual.python.source import PythonSource
from engine.grading.counterfactual.python.values import value_mutants


def python_mutants(content: bytes, path: str, names: Collection[str] | None = None) -> Sequence[Mutant]:
    """Return the mutants of test functions, in the order of preference within each.

    Args:
        content: bytes of the file; one that cannot be parsed has no mutants.
        path: path recorded in the mutants.
        names: names of the functions to mutate; None for all.
    """
    try:
        source = PythonSource(content, path)
        return [
            mutant
            for function in test_functions(source.tree)
            if names is None or function.node.name in names
            for find in (value_mutants, condition_mutants, added_mutants)
            for mutant in find(source, function)
        ]
    except (ValueError, RecursionError):
        return ()
