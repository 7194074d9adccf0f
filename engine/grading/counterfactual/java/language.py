"""Java: test methods by class and name, as Maven and Gradle report them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import tree_sitter_java
from tree_sitter import Language

from engine.grading.counterfactual.java.assertions import changed_candidates
from engine.grading.counterfactual.java.functions import JavaTest, certain_statements, find_tests
from engine.grading.counterfactual.syntax.added import added_candidates
from engine.grading.counterfactual.syntax.mutator import Candidate
from engine.grading.counterfactual.syntax.source import SyntaxSource, statements_of

_GRAMMAR = Language(tree_sitter_java.language())


class Java:
    """Methods with an annotation of JUnit or TestNG, and those of JUnit 3."""

    def grammar(self, path: str) -> Language:  # noqa: ARG002
        """Return the grammar of Java."""
        return _GRAMMAR

    def tests(self, source: SyntaxSource) -> Iterable[JavaTest]:
        """Yield the test methods of a file."""
        return find_tests(source.root)

    def candidates(self, source: SyntaxSource, test: JavaTest) -> Iterator[Candidate]:
        """Yield changed assertions, then a false assertion more."""
        yield from changed_candidates(source, test)
        statements = statements_of(test.body)
        yield from added_candidates(source, statements, certain_statements(statements), "java")

    def closeness(self, test: str, path: str, function: str) -> int:
        """Return the number of words of the test's name that are the function's classes and package."""
        *classes, method = function.split(".")
        words = re.findall(r"\w+", test.partition("[")[0]) if method in test else ()
        if method not in words:
            return 0
        package = path.split("/")[:-1]
        known = sum(name in words for name in classes)
        return 1 + 100 * known + sum(part in words for part in package)

    def contains(self, test: str, path: str, function: str) -> bool:  # noqa: ARG002
        """Return whether the test's name is that of the function's class."""
        outer = function.partition(".")[0]
        return re.fullmatch(rf"(?:[\w.]*\.)?{re.escape(outer)}", test.strip()) is not None
