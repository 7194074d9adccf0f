"""Mutators by file name. To add a language: a class with ``Mutator``'s method, and an entry here."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping

from engine.grading.counterfactual.base import Mutator
from engine.grading.counterfactual.python.mutator import PythonMutator

MUTATORS: Mapping[str, Mutator] = {".py": PythonMutator()}
"""File name extension → mutator."""


def mutator_of(path: str) -> Mutator | None:
    """Return the mutator of a test file; None where its language has none."""
    return MUTATORS.get(posixpath.splitext(path)[1])
