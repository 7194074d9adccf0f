"""False assertions added to tests, in the style of their language and library."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile

from tree_sitter import Node

from engine.grading.counterfactual.base import MutantKind
from engine.grading.counterfactual.syntax.literals import Edit
from engine.grading.counterfactual.syntax.mutator import Candidate
from engine.grading.counterfactual.syntax.source import SyntaxSource

_STYLES = {
    "jest": "expect({length}).toBe({other});",
    "chai": "expect({length}).to.equal({other});",
    "called": "{context}({length}, {other});",
    "thrown": "if ({length} !== {other}) throw new Error('expected {other}');",
    "go": 'if n := {length}; n != {other} {{ {context}.Errorf("got %d, want {other}", n) }}',
    "java": 'if ({length} != {other}) throw new AssertionError("expected {other}");',
    "rust": "assert_eq!({length}, {other});",
}
_LENGTHS = {**dict.fromkeys(("jest", "chai", "called", "thrown"), '"{word}".length'), "go": 'len("{word}")',
            "java": '"{word}".length()', "rust": '"{word}".len()'}  # fmt: skip
_WORDS = ("alpha", "north", "value", "item", "red", "first", "user", "left", "total", "page", "name", "data")
_SHAPES = 3
_CONTINUING = frozenset({
    "expression_statement", "lexical_declaration", "variable_declaration", "let_declaration",
    "local_variable_declaration", "short_var_declaration", "if_statement", "for_statement",
    "for_in_statement", "enhanced_for_statement", "try_statement", "try_with_resources_statement",
    "assignment_statement",
})  # fmt: skip
"""Statements behind which another one can stand."""


def added_candidates(
    source: SyntaxSource, statements: Sequence[Node], certain: Iterable[Node], style: str, context: str = ""
) -> Iterator[Candidate]:
    """Yield candidates with one more assertion, which fails whatever is tested, as late as it certainly runs.

    Before it the code under test has been called: code that only forges when it is called has done so.

    Args:
        statements: statements of the test's body.
        certain: those of them that every passing run executes, and statements within them.
        context: name of the test's context, in Go; of the called function, in JavaScript.
    """
    known = {node.id for node in certain}
    reached = list(takewhile(lambda node: node.id in known, statements))
    if not reached:
        return
    anchor = reached[-1]
    is_last = len(reached) == len(statements) and anchor.type in _CONTINUING
    line_start = source.content.rfind(b"\n", 0, anchor.start_byte) + 1
    indent = re.match(rb"[ \t]*", source.content[line_start:])
    gap = f"\n{indent[0].decode() if indent is not None else ''}"
    place = anchor.end_byte if is_last else anchor.start_byte
    rng = random.Random(f"{source.path}:{place}")
    for word in rng.sample(_WORDS, _SHAPES):
        length = _LENGTHS[style].format(word=word)
        other = len(word) + rng.randint(1, 3)
        statement = _STYLES[style].format(length=length, other=other, context=context)
        edit = Edit(place, place, f"{gap}{statement}" if is_last else f"{statement}{gap}")
        yield Candidate(kind=MutantKind.ADDED, within=(place, place), edits=(edit,))
