"""Go: tests by function and subtest, as ``go test -v`` names them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import tree_sitter_go
from tree_sitter import Language

from engine.grading.counterfactual.go.assertions import changed_candidates
from engine.grading.counterfactual.go.functions import (
    GoTest,
    block_statements,
    certain_statements,
    find_tests,
)
from engine.grading.counterfactual.go.tables import table_candidates
from engine.grading.counterfactual.syntax.added import added_candidates
from engine.grading.counterfactual.syntax.mutator import Candidate
from engine.grading.counterfactual.syntax.source import SyntaxSource

_GRAMMAR = Language(tree_sitter_go.language())


class Go:
    """Functions ``TestX(t *testing.T)``, their subtests, and methods of suites."""

    def grammar(self, path: str) -> Language:  # noqa: ARG002
        """Return the grammar of Go."""
        return _GRAMMAR

    def tests(self, source: SyntaxSource) -> Iterable[GoTest]:
        """Yield the tests of a file."""
        return find_tests(source.root)

    def candidates(self, source: SyntaxSource, test: GoTest) -> Iterator[Candidate]:
        """Yield changed tables and assertions, then a false assertion more."""
        yield from table_candidates(source, test)
        yield from changed_candidates(source, test)
        if not test.is_suite:
            certain = certain_statements(test.body, test.context)
            yield from added_candidates(source, block_statements(test.body), certain, "go", test.context)

    def closeness(self, test: str, path: str, function: str) -> int:
        """Return the length of the function's name where the test is it, or one of its subtests."""
        suite = re.match(r"\w+\.(?=Test\w+$)", function)
        name = function[suite.end() :] if suite else function
        if name not in test or re.search(rf"(?:^|[^\w/]|/(?=Test)){re.escape(name)}(?:$|/)", test) is None:
            return 0
        folder = path.rpartition("/")[0]
        return 2 * len(function) + (1 if folder and folder in test else 0)

    def contains(self, test: str, path: str, function: str) -> bool:  # noqa: ARG002
        """Return whether the function is a subtest of the test."""
        found = re.search(r"(?:^|[^\w/])(Test\S*)$", test)
        return found is not None and function.startswith(f"{found[1]}/")
