"""Tests of a Go file with their subtests, and those of their statements that every passing run executes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tree_sitter import Node

from engine.grading.counterfactual.go import names
from engine.grading.counterfactual.syntax.literals import is_text, value_of
from engine.grading.counterfactual.syntax.mutator import SyntaxTest
from engine.grading.counterfactual.syntax.source import own_nodes, text_of

_TEST_NAME = re.compile(r"Test(?![a-z])\w*")
_SCOPES = frozenset({"func_literal"})


@dataclass(frozen=True, slots=True, kw_only=True)
class GoTest(SyntaxTest):
    """A test function or a subtest with a literal name, as ``go test -v`` prints it: ``TestMean/of_one``."""

    context: str
    """Name of its ``*testing.T``; in a suite that of the receiver."""
    is_suite: bool = False


def find_tests(root: Node) -> Iterator[GoTest]:
    """Yield the tests of a file and their subtests."""
    for node in root.named_children:
        name = text_of(node.child_by_field_name("name"))
        body = node.child_by_field_name("body")
        if body is None or not _TEST_NAME.fullmatch(name) or name == "TestMain":
            continue
        if node.type == "function_declaration" and (context := _context(node)):
            yield from _with_subtests(_test(name, node, body, context))
        elif node.type == "method_declaration":
            receiver = node.child_by_field_name("receiver")
            found = re.fullmatch(r"\(\s*(\w+)\s+\*?(\w+)\s*\)", text_of(receiver))
            if found and text_of(node.child_by_field_name("parameters")) == "()":
                yield replace(_test(f"{found[2]}.{name}", node, body, found[1]), is_suite=True)


def _test(name: str, node: Node, body: Node, context: str) -> GoTest:
    return GoTest(name=name, node=node, body=body, title=re.sub(r"[_/.]", " ", name), context=context)


def _context(function: Node) -> str:
    """Return the name of the only parameter, a ``*testing.T``; empty for other functions."""
    found = re.fullmatch(
        r"\(\s*(\w+)\s+\*(?:testing\.)?T\s*,?\s*\)", text_of(function.child_by_field_name("parameters"))
    )
    return found[1] if found and found[1] != "_" else ""


def _with_subtests(test: GoTest) -> Iterator[GoTest]:
    if re.search(rf"\b{test.context}\s*(?:,\s*\w+\s*)?:=|\bvar\s+{test.context}\b", text_of(test.body)):
        return  # its name may stand for something that does not fail the test
    yield test
    for statement in certain_statements(test.body, test.context):
        if (subtest := _subtest(statement, test.context)) is not None:
            name, function = subtest
            body, context = function.child_by_field_name("body"), _context(function)
            if name and is_text(name) and body is not None and context:
                title = re.sub(r"\s", "_", value_of(name))
                yield from _with_subtests(_test(f"{test.name}/{title}", function, body, context))


def _subtest(statement: Node, context: str) -> tuple[Node, Node] | None:
    """Return name and function of ``t.Run(name, func(t *testing.T) {…})``."""
    call = statement.named_children[0] if statement.type == "expression_statement" else None
    arguments = arguments_of(call) if call is not None else []
    if (
        call is None
        or text_of(call.child_by_field_name("function")) != f"{context}.Run"
        or len(arguments) != 2
    ):
        return None
    return (arguments[0], arguments[1]) if arguments[1].type == "func_literal" else None


def arguments_of(call: Node) -> list[Node]:
    """Return the arguments of a call; none for other nodes."""
    node = call.child_by_field_name("arguments") if call.type == "call_expression" else None
    return [child for child in node.named_children if child.type != "comment"] if node is not None else []


def block_statements(block: Node) -> list[Node]:
    """Return the statements of a block."""
    found: list[Node] = []
    for child in block.named_children:
        if child.type == "statement_list":
            found += child.named_children
        elif child.type != "comment":
            found.append(child)
    return [child for child in found if child.type != "comment"]


def certain_statements(block: Node, context: str, *, in_loop: bool = False) -> Iterator[Node]:
    """Yield the statements that every run executes that does not fail before."""
    for statement in block_statements(block):
        yield statement
        if statement.type == "block":
            yield from certain_statements(statement, context, in_loop=in_loop)
        if _may_leave(statement, context, in_loop=in_loop):
            return


def loop_statements(body: Node, context: str) -> Iterator[tuple[Node, str]]:
    """Yield certain statements of a loop's pass, also those of its subtest, with the name of the context."""
    for statement in certain_statements(body, context, in_loop=True):
        yield statement, context
        if (subtest := _subtest(statement, context)) is not None:
            inner, own = subtest[1].child_by_field_name("body"), _context(subtest[1])
            if inner is not None and own:
                for one in certain_statements(inner, own):
                    yield one, own


def fails(block: Node | None, context: str) -> bool:
    """Return whether a block fails the test before anything else leaves it."""
    for statement in block_statements(block) if block is not None else ():
        call = statement.named_children[0] if statement.type == "expression_statement" else None
        if call is not None and call.type == "call_expression":
            owner, _, name = text_of(call.child_by_field_name("function")).rpartition(".")
            if owner == context and name in names.FAILS:
                return True
        if _may_leave(statement, context, in_loop=True):
            return False
    return False


def _may_leave(statement: Node, context: str, *, in_loop: bool) -> bool:
    """Return whether a statement may end the test, or the pass of a loop, without failing it."""
    if statement.type == "if_statement":
        parts = [statement.child_by_field_name(part) for part in ("consequence", "alternative")]
        return any(
            part is not None and not _fails_first(part, context) and _leaves(part, in_loop=in_loop)
            for part in parts
        )
    return _leaves(statement, in_loop=in_loop)


def _fails_first(part: Node, context: str) -> bool:
    return part.type == "block" and fails(part, context)


def _leaves(node: Node, *, in_loop: bool) -> bool:
    leaving: Sequence[str] = ("return_statement", "goto_statement")
    if in_loop:
        leaving = (*leaving, "break_statement", "continue_statement")
    return any(
        one.type in leaving or (one.type == "field_identifier" and text_of(one) in names.ENDS)
        for one in own_nodes([node], _SCOPES)
    )
