"""Comparisons with expected values in the conditions of a shell script.

Only what a constant decides alone is a comparison: texts and numbers that ``[`` compares with a program's
output, files that ``diff`` and ``cmp`` compare, lines that ``grep`` looks for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tree_sitter import Node

from engine.grading.counterfactual.shell.conditions import Condition
from engine.grading.counterfactual.shell.nodes import arguments_of, name_of, without_redirects
from engine.grading.counterfactual.syntax.source import text_of

_EQUAL, _UNEQUAL = frozenset({"=", "==", "-eq"}), frozenset({"!=", "-ne"})
_OPERANDS = frozenset({
    "word", "number", "string", "raw_string", "simple_expansion", "expansion", "command_substitution",
    "concatenation", "extglob_pattern",
})  # fmt: skip
_OPTIONS = {
    "diff": re.compile(r"-[qsucwbBiZaNy]+|--(?:brief|strip-trailing-cr|ignore-[a-z-]+)"),
    "cmp": re.compile(r"-[slb]+|--(?:silent|quiet)"),
    "grep": re.compile(r"-[qsFwixE]+|--(?:quiet|silent|fixed-strings|ignore-case)"),
}
"""Options with which a difference stays one, and a text is looked for as it is."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison that succeeds in every passing run."""

    within: Node
    """The command or expression."""
    sides: Sequence[Node]
    """The two that are equal; of ``grep`` the text that is looked for."""

    @property
    def is_search(self) -> bool:
        """Return whether a text is looked for in another."""
        return len(self.sides) == 1


def comparisons_of(condition: Condition) -> Iterator[Comparison]:
    """Yield the comparisons, each of which decides alone whether a condition ends as wanted."""
    yield from _in_command(condition.node, wanted=condition.wanted)


def _in_command(node: Node, *, wanted: bool) -> Iterator[Comparison]:
    node = without_redirects(node)
    if node.type == "negated_command":
        yield from _in_command(node.named_children[0], wanted=not wanted)
    elif node.type == "list" and node.children[1].type == ("&&" if wanted else "||"):
        for side in (node.children[0], node.children[-1]):
            yield from _in_command(side, wanted=wanted)
    elif node.type == "test_command":
        yield from _in_expression(node.named_children[0], wanted=wanted)
    elif node.type == "pipeline" and wanted:
        yield from _in_command(node.named_children[-1], wanted=True)
    elif node.type == "command":
        yield from _of_program(node, wanted=wanted)


def _of_program(command: Node, *, wanted: bool) -> Iterator[Comparison]:
    name, arguments = name_of(command), arguments_of(command)
    if name == "test":
        if len(arguments) == 3 and text_of(arguments[1]) in (_EQUAL if wanted else _UNEQUAL):
            yield Comparison(command, (arguments[0], arguments[2]))
    elif name in _OPTIONS and wanted:
        operands = [one for one in arguments if not text_of(one).startswith("-") or text_of(one) == "-"]
        options = [text_of(one) for one in arguments if one not in operands]
        if all(map(_OPTIONS[name].fullmatch, options)):
            if name == "grep" and operands:
                yield Comparison(command, operands[:1])
            elif name != "grep" and len(operands) == 2:
                yield Comparison(command, operands)


def _in_expression(node: Node, *, wanted: bool) -> Iterator[Comparison]:
    if node.type == "parenthesized_expression":
        yield from _in_expression(node.named_children[0], wanted=wanted)
    elif node.type == "unary_expression" and node.children[0].type == "!":
        yield from _in_expression(node.named_children[-1], wanted=not wanted)
    elif node.type == "binary_expression":
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        operator = text_of(node.child_by_field_name("operator"))
        if left is None or right is None:
            return
        if operator == ("&&" if wanted else "||"):
            yield from _in_expression(left, wanted=wanted)
            yield from _in_expression(right, wanted=wanted)
        elif operator in (_EQUAL if wanted else _UNEQUAL) and {left.type, right.type} <= _OPERANDS:
            yield Comparison(node, (left, right))


def is_fixed_text(text: str) -> bool:
    """Return whether ``grep`` takes a text for itself, options for patterns or not."""
    return re.fullmatch(r"[\w ,:;=/'\"-]+", text) is not None
