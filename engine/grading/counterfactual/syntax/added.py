"""False assertions added to tests, in the style of their language and library."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

from tree_sitter import Node

from engine.grading.counterfactual.syntax.literals import Edit
from engine.grading.counterfactual.syntax.source import SyntaxSource, statements_of

_STYLES = {
    "expect": "expect({length}).toBe({other});",
    "assert": "if ({length} !== {other}) throw new Error('expected {other}');",
    "go": 'if n := {length}; n != {other} {{ {context}.Errorf("got %d, want {other}", n) }}',
    "java": 'if ({length} != {other}) throw new AssertionError("expected {other}");',
    "rust": "assert_eq!({length}, {other});",
}
_LENGTHS = {"expect": '"{word}".length', "assert": '"{word}".length', "go": 'len("{word}")',
            "java": '"{word}".length()', "rust": '"{word}".len()'}  # fmt: skip
_WORDS = ("alpha", "north", "value", "item", "red", "first", "user", "left", "total", "page", "name", "data")
_SHAPES = 3


def added_edit(source: SyntaxSource, body: Node, style: str, context: str = "") -> Iterator[Edit]:
    """Yield edits that add a false assertion at the top of a block.

    Args:
        context: name of the test's context, in Go.
    """
    place = body.start_byte + 1
    rng = random.Random(f"{source.path}:{place}")
    statements = statements_of(body)
    if statements and re.match(r"['\"]use strict", (statements[0].text or b"").decode()):
        place = statements[0].end_byte
    for word in rng.sample(_WORDS, _SHAPES):
        length = _LENGTHS[style].format(word=word)
        other = len(word) + rng.randint(1, 3)
        statement = _STYLES[style].format(length=length, other=other, context=context)
        yield Edit(place, place, f" {statement}{';' if style == 'go' else ''}")
