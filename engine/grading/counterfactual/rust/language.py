"""Rust: tests by module and function, as ``cargo test`` names them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from tree_sitter import Language

from engine.grading.counterfactual.rust.assertions import changed_candidates
from engine.grading.counterfactual.rust.functions import SEPARATOR, certain_statements, find_tests
from engine.grading.counterfactual.rust.macros import GRAMMAR
from engine.grading.counterfactual.syntax.added import added_candidates
from engine.grading.counterfactual.syntax.mutator import Candidate, SyntaxTest
from engine.grading.counterfactual.syntax.source import SyntaxSource, statements_of


class Rust:
    """Functions with the attribute ``#[test]``, or that of an asynchronous runtime."""

    def grammar(self, path: str) -> Language:  # noqa: ARG002
        """Return the grammar of Rust."""
        return GRAMMAR

    def tests(self, source: SyntaxSource) -> Iterable[SyntaxTest]:
        """Yield the tests of a file."""
        return find_tests(source.root, "")

    def candidates(self, source: SyntaxSource, test: SyntaxTest) -> Iterator[Candidate]:
        """Yield changed assertions, then a false assertion more."""
        yield from changed_candidates(source, test)
        statements = statements_of(test.body)
        if test.node.child_by_field_name("return_type") is not None:
            statements = statements[:-1]  # the last one is the result
        yield from added_candidates(source, statements, certain_statements(statements), "rust")

    def closeness(self, test: str, path: str, function: str) -> int:
        """Return the number of words of the test's name that are the function's modules and file."""
        *modules, name = function.split(SEPARATOR)
        words = re.findall(r"\w+", test) if name in test else ()
        if name not in words:
            return 0
        files = re.findall(r"\w+", path.removesuffix(".rs"))
        return 1 + 100 * sum(module in words for module in modules) + sum(part in words for part in files)

    def contains(self, test: str, path: str, function: str) -> bool:  # noqa: ARG002
        """Return False: no name stands for several functions."""
        return False
