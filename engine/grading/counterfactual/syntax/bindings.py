"""Names bound once to a value that serve as expected values alone: ``want := 3``, then ``got != want``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from tree_sitter import Node

from engine.grading.counterfactual.syntax.source import all_nodes, text_of

_NAMES = frozenset({"identifier", "shorthand_property_identifier", "shorthand_property_identifier_pattern"})
_DECLARATIONS = frozenset({
    "variable_declarator", "lexical_declaration", "variable_declaration", "expression_list",
    "short_var_declaration", "var_spec", "var_declaration", "const_spec", "const_declaration",
    "statement_list", "local_variable_declaration", "let_declaration",
})  # fmt: skip
"""Nodes between a value and the block of its statement."""


def declared(declaration: str, own: str = "name") -> Callable[[Node], Node | None]:
    """Return what finds the value of a declaration such as ``int name = value``, given the name's node.

    Args:
        declaration: the grammar's type of such declarations.
        own: the field that holds their name.
    """

    def value(name: Node) -> Node | None:
        parent = name.parent
        if parent is None or parent.type != declaration:
            return None
        declared_name = parent.child_by_field_name(own)
        return parent.child_by_field_name("value") if declared_name == name else None

    return value


class ExpectedNames:
    """Names of a test's body.

    Args:
        declared: returns the value to which a declaration binds a name, given the name's node; None for uses.
    """

    def __init__(self, body: Node, declared: Callable[[Node], Node | None]) -> None:
        self._uses: defaultdict[str, list[Node]] = defaultdict(list)
        for node in all_nodes(body):
            if node.type in _NAMES:
                self._uses[text_of(node)].append(node)
        self._body = body
        self._declared = declared
        self._sides: set[tuple[int, int]] = set()
        self._shown: list[tuple[int, int]] = []

    def compared(self, left: tuple[int, int], right: tuple[int, int]) -> None:
        """Note the positions of the two sides of an equality that every passing run evaluates."""
        self._sides |= {left, right}

    def shown(self, start: int, end: int) -> None:
        """Note the position of a message, which may name an expected value."""
        self._shown.append((start, end))

    def value_of(self, name: str) -> Node | None:
        """Return the value of a name; None where it is bound more than once or used for anything else."""
        values: list[Node] = []
        for node in self._uses.get(name, ()):
            value = self._declared(node)
            if value is not None:
                values.append(value)
            elif not self._is_harmless(node.start_byte, node.end_byte):
                return None
        return values[0] if len(values) == 1 and self._is_visible(values[0]) else None

    def _is_visible(self, value: Node) -> bool:
        """Return whether the value belongs to a statement of the body itself."""
        node = value.parent
        while node is not None and node.type in _DECLARATIONS:
            node = node.parent
        return node is not None and node.id == self._body.id

    def _is_harmless(self, start: int, end: int) -> bool:
        return (start, end) in self._sides or any(first <= start < last for first, last in self._shown)
