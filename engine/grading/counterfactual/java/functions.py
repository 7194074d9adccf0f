"""Test methods of a Java file, and those of their statements that every passing run executes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tree_sitter import Node

from engine.grading.counterfactual.java import names
from engine.grading.counterfactual.syntax.mutator import SyntaxTest
from engine.grading.counterfactual.syntax.source import own_nodes, statements_of, text_of

_SCOPES = frozenset({"lambda_expression", "class_body", "class_declaration", "object_creation_expression"})
_CLASSES = frozenset({"class_declaration", "record_declaration", "interface_declaration"})


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaTest(SyntaxTest):
    """A test method, named by its classes, e.g. ``MeanTest.Inner.ofOne``."""

    expected: Node | None = None
    """Class in ``@Test(expected = X.class)``."""


def find_tests(root: Node) -> Iterator[JavaTest]:
    """Yield the test methods of a file; those that are switched off are left out."""
    for node in root.named_children:
        if node.type in _CLASSES:
            yield from _methods(node, "")


def _methods(node: Node, prefix: str) -> Iterator[JavaTest]:
    name = f"{prefix}{text_of(node.child_by_field_name('name'))}."
    body = node.child_by_field_name("body")
    is_junit3 = text_of(node.child_by_field_name("superclass")).endswith("TestCase")
    for child in body.named_children if body is not None else ():
        if child.type in _CLASSES:
            yield from _methods(child, name)
        elif child.type == "method_declaration" and (block := child.child_by_field_name("body")) is not None:
            method = text_of(child.child_by_field_name("name"))
            found = {
                text_of(one.child_by_field_name("name")).rpartition(".")[2]: one
                for one in _annotations(child)
            }
            if found.keys() & names.SKIPPED:
                continue
            if found.keys() & names.TESTS or (is_junit3 and method.startswith("test")):
                words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|_", " ", method)
                title = f"{words} {text_of(found.get('DisplayName'))}"
                expected = _expected(found["Test"]) if "Test" in found else None
                yield JavaTest(name=f"{name}{method}", node=child, body=block, title=title, expected=expected)


def _annotations(method: Node) -> list[Node]:
    modifiers = next((child for child in method.named_children if child.type == "modifiers"), None)
    kinds = ("marker_annotation", "annotation")
    return (
        [child for child in modifiers.named_children if child.type in kinds] if modifiers is not None else []
    )


def _expected(annotation: Node) -> Node | None:
    for node in own_nodes([annotation], ()):
        if node.type == "element_value_pair" and re.match(r"expected(Exceptions)?$", text_of(
            node.child_by_field_name("key")
        )):  # fmt: skip
            return node.child_by_field_name("value")
    return None


def certain_expressions(test: JavaTest) -> Iterator[tuple[Node, Node | None]]:
    """Yield the expressions that run whenever a test passes, with the ``assertAll`` that runs them."""
    for statement in certain_statements(statements_of(test.body)):
        if statement.type == "expression_statement" and statement.named_children:
            expression = statement.named_children[0]
            yield expression, None
            if expression.type == "method_invocation" and _name(expression) == "assertAll":
                yield from ((one, expression) for one in _grouped(expression))


def _grouped(call: Node) -> Iterator[Node]:
    arguments = call.child_by_field_name("arguments")
    for argument in arguments.named_children if arguments is not None else ():
        body = argument.child_by_field_name("body") if argument.type == "lambda_expression" else None
        if body is not None and body.type == "block":
            for statement in certain_statements(statements_of(body)):
                if statement.type == "expression_statement":
                    yield statement.named_children[0]
        elif body is not None:
            yield body


def certain_statements(body: Sequence[Node]) -> Iterator[Node]:
    """Yield the statements that run whenever the method ends normally, and whose exceptions leave it."""
    for node in body:
        yield node
        if node.type in ("block", "synchronized_statement"):
            inner = node if node.type == "block" else node.child_by_field_name("body")
            yield from certain_statements(statements_of(inner)) if inner is not None else ()
        elif node.type in ("try_statement", "try_with_resources_statement"):
            yield from _tried(node)
        if _may_leave(node):
            return


def _tried(node: Node) -> Iterator[Node]:
    """Yield the certain statements of a block without handlers, or those of the only handler."""
    block = node.child_by_field_name("body")
    handlers = [child for child in node.named_children if child.type == "catch_clause"]
    last = next((child for child in node.named_children if child.type == "finally_clause"), None)
    if block is None or (last is not None and _may_leave(last)):
        return
    if not handlers:
        yield from certain_statements(statements_of(block))
    elif len(handlers) == 1 and _always_fails(block):
        caught = re.findall(r"\w+", text_of(handlers[0].named_children[0]))
        inner = handlers[0].child_by_field_name("body")
        if inner is not None and not names.BROAD.intersection(caught):
            yield from certain_statements(statements_of(inner))


def _always_fails(block: Node) -> bool:
    """Return whether a block either raises or ends with ``fail()``."""
    statements = statements_of(block)
    if not statements or _may_leave(block) or statements[-1].type != "expression_statement":
        return False
    call = statements[-1].named_children[0]
    if call.type != "method_invocation" or _name(call) != "fail":
        return False
    owner = call.child_by_field_name("object")
    return owner is None or text_of(owner) in names.CLASSES


def _name(call: Node) -> str:
    return text_of(call.child_by_field_name("name"))


def _may_leave(node: Node) -> bool:
    """Return whether a statement may end the method without failing it."""
    return any(
        one.type in ("return_statement", "yield_statement")
        or (one.type == "method_invocation" and _name(one).startswith("assume"))
        for one in own_nodes([node], _SCOPES)
    )
