"""Mutants of a Python test file: functions and methods of pytest and ``unittest``."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import product

from engine.grading.counterfactual.base import Mutant
from engine.grading.counterfactual.python.added import added_mutants
from engine.grading.counterfactual.python.conditions import condition_mutants
from engine.grading.counterfactual.python.expectations import Expectations
from engine.grading.counterfactual.python.functions import test_functions
from engine.grading.counterfactual.python.source import PythonSource
from engine.grading.counterfactual.python.values import value_mutants


def python_mutants(content: bytes, path: str, names: Collection[str] | None = None) -> Sequence[Mutant]:
    """Return the mutants of test functions, of each in the order of preference.

    Args:
        content: bytes of the file; one that cannot be parsed has no mutants.
        path: path that the mutants name.
        names: names of the functions wanted; None for all.
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


def renamed_rows(before: bytes, after: bytes, path: str, function: str) -> dict[str, str]:
    """Return the end of a test's name → that after a change of the file, for rows of a function's tables."""
    old, new = (_row_names(content, path, function) for content in (before, after))
    return {f"[{name}]": f"[{new[rows]}]" for rows, name in old.items() if new.get(rows, name) != name}


def _row_names(content: bytes, path: str, function: str) -> dict[tuple[int, ...], str]:
    """Return rows, one of each table, with the name of their tests; the last table's part comes first."""
    source = PythonSource(content, path)
    node = next(one for one in test_functions(source.tree) if one.name == function)
    tables = [table.row_names() for table in reversed(Expectations(source, node).tables) if table.names_tests]
    return {
        tuple(row for row, _ in rows): "-".join(name for _, name in rows)
        for rows in product(*(names.items() for names in tables))
    }
