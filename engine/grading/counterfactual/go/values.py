"""Literals in Go expressions, each of which decides alone whether the whole is equal."""

from __future__ import annotations

from collections.abc import Iterator

from tree_sitter import Node

from engine.grading.counterfactual.go import names
from engine.grading.counterfactual.go.functions import arguments_of
from engine.grading.counterfactual.syntax.literals import is_literal
from engine.grading.counterfactual.syntax.source import text_of


def leaves(node: Node) -> Iterator[Node]:
    """Yield the literals of a value: constants, conversions of constants, elements of composite literals."""
    if is_literal(node):
        yield node
    elif node.type == "parenthesized_expression" or (
        node.type == "unary_expression" and text_of(node)[:1] in ("-", "&")
    ):
        yield from leaves(node.named_children[0])
    elif node.type in ("call_expression", "type_conversion_expression"):
        arguments = arguments_of(node)
        if text_of(node.child_by_field_name("function")) in names.CONVERSIONS and len(arguments) == 1:
            yield from leaves(arguments[0])
        elif text_of(node).startswith("[]byte(") and node.named_children:
            yield from leaves(node.named_children[-1])
    elif node.type == "composite_literal":
        body = node.child_by_field_name("body")
        if body is not None:
            yield from elements(body)


def elements(body: Node) -> Iterator[Node]:
    """Yield the literals among the elements of a composite literal; keys are left out."""
    for element in body.named_children:
        value = element.child_by_field_name("value") if element.type == "keyed_element" else element
        if value is not None and value.type == "literal_element" and value.named_children:
            value = value.named_children[0]
        if value is not None and value.type == "literal_value":
            yield from elements(value)
        elif value is not None:
            yield from leaves(value)
