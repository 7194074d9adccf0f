"""JavaScript and TypeScript: grammars by file name, and tests by the titles that runners print."""

from __future__ import annotations

import functools
import posixpath
import re
from collections.abc import Iterable, Iterator

import tree_sitter_javascript
import tree_sitter_typescript
from tree_sitter import Language

from engine.grading.counterfactual.base import SCRIPT
from engine.grading.counterfactual.javascript.assertions import changed_candidates, script_candidates
from engine.grading.counterfactual.javascript.functions import (
    SEPARATOR,
    certain_statements,
    find_tests,
    parameter,
)
from engine.grading.counterfactual.javascript.scripts import script_of
from engine.grading.counterfactual.syntax.added import added_candidates
from engine.grading.counterfactual.syntax.mutator import Candidate, SyntaxTest
from engine.grading.counterfactual.syntax.naming import is_same_file
from engine.grading.counterfactual.syntax.source import SyntaxSource, statements_of, text_of

_PLACEHOLDER = re.compile(r"%[sdifjoOpc#$%]|\\?\$\\?\{.*?\}|\\?\$[A-Za-z_][\w.]*")


class JavaScript:
    """Tests that suites register by title: ``describe`` and ``it`` or ``test``."""

    def grammar(self, path: str) -> Language:
        """Return the grammar of a file: JavaScript, TypeScript or TypeScript with markup."""
        return _grammar(posixpath.splitext(path)[1])

    def tests(self, source: SyntaxSource) -> Iterable[SyntaxTest]:
        """Return the tests of a file, named by the titles of their suites and their own, or its script."""
        script = script_of(source)
        return find_tests(source.root) if script is None else [script.test]

    def candidates(self, source: SyntaxSource, test: SyntaxTest) -> Iterator[Candidate]:
        """Yield changed assertions, then a false one more."""
        script = script_of(source)
        if script is not None:
            yield from script_candidates(source, script)
            statements = statements_of(source.root)
            yield from added_candidates(source, statements, script.statements, *_style(source, test))
            return
        yield from changed_candidates(source, test)
        if test.body.type == "statement_block":
            statements = statements_of(test.body)
            certain = certain_statements(statements)
            yield from added_candidates(source, statements, certain, *_style(source, test))

    def closeness(self, test: str, path: str, function: str) -> int:
        """Return the number of characters of the test's name that the function's titles explain."""
        if function == SCRIPT:
            return 0
        name = " ".join(test.split())
        *suites, title = function.split(SEPARATOR)
        if _PLACEHOLDER.search(title) is None and not name.endswith(title):
            return 0
        found = re.search(rf"(?:^|[^\w]){_pattern(title)}$", name)
        if found is None:
            return 0
        explained, rest = len(title), name[: found.start() + 1]
        for suite in reversed(suites):
            above = list(re.finditer(rf"(?:^|(?<=\W)){_pattern(suite)}(?!\w)", rest))
            if above:
                explained += len(suite)
                rest = rest[: above[-1].start()]
        return explained + (1 if path in name or posixpath.basename(path) in name else 0)

    def contains(self, test: str, path: str, function: str) -> bool:  # noqa: ARG002
        """Return whether the test's name is that of the file."""
        return is_same_file(test, path)


def _style(source: SyntaxSource, test: SyntaxTest) -> tuple[str, str]:
    """Return the style of the assertions of a test, or of its file, and the function that they call."""
    context = re.escape(parameter(test.node) or "assert")
    called = rf"(?<![.\w])(?:assert|{context})\.(?:strictEqual|equal|is)(?=\()"
    for text in (text_of(test.body), source.content.decode()):
        if re.search(r"(?<![.\w])expect\(", text):
            if re.search(r"\)\s*\.(?:not\.|resolves\.)*to[A-Z]\w*\(", text):
                return "jest", ""
            if re.search(r"\)\s*\.(?:to|not|is|eventually)\.", text):
                return "chai", ""
        if (found := re.search(called, text)) is not None:
            return "called", found[0]
    return "thrown", ""


@functools.lru_cache(maxsize=10_000)
def _pattern(title: str) -> str:
    parts = _PLACEHOLDER.split(title)
    return ".+?".join(re.escape(part) for part in parts) if len(parts) > 1 else re.escape(title)


@functools.cache
def _grammar(extension: str) -> Language:
    if extension == ".tsx":
        return Language(tree_sitter_typescript.language_tsx())
    if extension in (".ts", ".mts", ".cts"):
        return Language(tree_sitter_typescript.language_typescript())
    return Language(tree_sitter_javascript.language())
