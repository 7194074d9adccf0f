"""Test classes whose assertion methods are certainly those of ``unittest``."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from engine.grading.counterfactual.python.functions import dotted
from engine.grading.counterfactual.python.source import PythonSource

_TEST_CASES = frozenset({
    "unittest.TestCase", "unittest.IsolatedAsyncioTestCase", "unittest.case.TestCase",
    "django.test.SimpleTestCase", "django.test.TestCase", "django.test.TransactionTestCase",
    "django.test.LiveServerTestCase", "django.test.testcases.TestCase",
})  # fmt: skip
"""Classes that give ``assertEqual`` no other meaning than ``unittest`` does."""


def has_plain_equality(source: PythonSource, function: str) -> bool:
    """Return whether ``self.assertEqual`` certainly compares by ``==`` in a test method.

    Base classes in other files may override it, or call ``addTypeEqualityFunc``.

    Args:
        function: dotted name of the method.
    """
    names = function.split(".")
    return len(names) > 1 and names[-2] in _test_classes(source)


def _test_classes(source: PythonSource) -> set[str]:
    """Return the names of the file's test classes that have known bases alone."""
    imported = _imported(source)
    helpers, tests = {"object"}, set[str]()
    for node in ast.walk(source.tree):  # a class comes after its bases of the same scope
        if not isinstance(node, ast.ClassDef) or node.keywords or source.constants.bound[node.name] != 1:
            continue
        bases = {"" if isinstance(base, ast.Call) else dotted(base) for base in node.bases}
        cases = {base for base in bases if base in tests or _full_name(base, imported) in _TEST_CASES}
        if cases | helpers >= bases:
            (tests if cases else helpers).add(node.name)
    return tests


def _imported(source: PythonSource) -> dict[str, str]:
    """Return name → full name, of the names that a module imports and binds nowhere else."""
    bound = source.constants.bound
    if "*" in bound:
        return {}
    found: dict[str, str] = {}
    for node in source.tree.body:
        match node:
            case ast.Import(names=aliases):
                found |= {alias.asname or alias.name: alias.name for alias in aliases}
            case ast.ImportFrom(module=str(module), level=0, names=aliases):
                found |= {alias.asname or alias.name: f"{module}.{alias.name}" for alias in aliases}
    return {name: origin for name, origin in found.items() if bound[name.partition(".")[0]] == 1}


def _full_name(name: str, imported: Mapping[str, str]) -> str:
    """Return the full name of a dotted one; empty where its beginning is not imported."""
    owner, _, last = name.rpartition(".")
    if name in imported:
        return imported[name]
    return f"{imported[owner]}.{last}" if owner in imported else ""
