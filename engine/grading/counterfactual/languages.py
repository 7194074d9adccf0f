"""Mutators by file name. To add a language: a class with ``Mutator``'s methods, and an entry here.

Languages with a tree-sitter grammar share ``syntax.mutator``; they bring a ``SyntaxLanguage``.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping

from engine.grading.counterfactual.base import Mutator
from engine.grading.counterfactual.go.language import Go
from engine.grading.counterfactual.java.language import Java
from engine.grading.counterfactual.javascript.language import JavaScript
from engine.grading.counterfactual.python.mutator import PythonMutator
from engine.grading.counterfactual.rust.language import Rust
from engine.grading.counterfactual.shell.mutator import ShellMutator
from engine.grading.counterfactual.syntax.mutator import SyntaxMutator

SHELL = ShellMutator()
_JAVASCRIPT = SyntaxMutator(JavaScript())
MUTATORS: Mapping[str, Mutator] = {
    ".py": PythonMutator(),
    **dict.fromkeys((".js", ".mjs", ".cjs", ".jsx", ".ts", ".mts", ".cts", ".tsx"), _JAVASCRIPT),
    ".go": SyntaxMutator(Go()),
    ".java": SyntaxMutator(Java()),
    ".rs": SyntaxMutator(Rust()),
    **dict.fromkeys((".sh", ".bash"), SHELL),
}
"""File name extension → mutator."""


def mutator_of(path: str) -> Mutator | None:
    """Return the mutator of a test file; None where its language has none."""
    return MUTATORS.get(posixpath.splitext(path)[1])
