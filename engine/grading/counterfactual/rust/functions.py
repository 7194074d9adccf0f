"""Test functions of a Rust file, and those of their statements that every passing run executes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tree_sitter import Node

from engine.grading.counterfactual.syntax.mutator import SyntaxTest
from engine.grading.counterfactual.syntax.source import own_nodes, statements_of, text_of

SEPARATOR = "::"
_SCOPES = frozenset({"closure_expression", "function_item", "async_block"})
_TEST = re.compile(r"#!?\[\s*(?:\w+::)*(?:test|rstest|test_log::test)\s*(?:\(.*\))?\s*\]", re.DOTALL)
_NOT_RUN = re.compile(r"#\[\s*(?:should_panic|ignore|test_case)\b")


def find_tests(items: Node, prefix: str) -> Iterator[SyntaxTest]:
    """Yield the tests of a file's modules; those that should panic or are ignored are left out."""
    attributes: list[str] = []
    for node in items.named_children:
        if node.type == "attribute_item":
            attributes.append(text_of(node))
            continue
        name = f"{prefix}{text_of(node.child_by_field_name('name'))}"
        body = node.child_by_field_name("body")
        if node.type == "mod_item" and body is not None:
            yield from find_tests(body, f"{name}{SEPARATOR}")
        elif node.type == "function_item" and body is not None and _is_test(attributes):
            yield SyntaxTest(name=name, node=node, body=body, title=re.sub(r"_|::", " ", name))
        if "comment" not in node.type:
            attributes = []


def _is_test(attributes: Sequence[str]) -> bool:
    return any(map(_TEST.fullmatch, attributes)) and not any(map(_NOT_RUN.match, attributes))


def certain_expressions(body: Node) -> Iterator[Node]:
    """Yield the expressions that run whenever the test returns normally, and whose panics leave it."""
    for node in certain_statements(statements_of(body)):
        yield _expression(node)


def certain_statements(statements: Sequence[Node]) -> Iterator[Node]:
    """Yield the statements and tail expressions that run whenever the test returns normally."""
    for node in statements:
        yield node
        expression = _expression(node)
        if expression.type in ("block", "unsafe_block"):
            inner = expression if expression.type == "block" else expression.named_children[-1]
            yield from certain_statements(statements_of(inner))
        if any(one.type in ("return_expression", "break_expression") for one in own_nodes([node], _SCOPES)):
            return


def _expression(node: Node) -> Node:
    return node.named_children[0] if node.type == "expression_statement" and node.named_children else node
