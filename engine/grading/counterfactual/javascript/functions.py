"""Tests of a JavaScript file, and those of their statements that every passing run executes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tree_sitter import Node

from engine.grading.counterfactual.javascript import names
from engine.grading.counterfactual.syntax.literals import is_literal, is_text, value_of
from engine.grading.counterfactual.syntax.mutator import SyntaxTest
from engine.grading.counterfactual.syntax.source import all_nodes, own_nodes, statements_of, text_of

SEPARATOR = " > "
FUNCTIONS = frozenset({"arrow_function", "function_expression"})
SCOPES = frozenset({
    *FUNCTIONS, "function_declaration", "generator_function", "generator_function_declaration",
    "method_definition", "class_declaration", "class",
})  # fmt: skip


def find_tests(root: Node) -> Iterator[SyntaxTest]:
    """Yield the tests that suites and files register; skipped and expected failures are left out."""
    yield from _collect(root, ())


def _collect(node: Node, titles: tuple[str, ...]) -> Iterator[SyntaxTest]:
    stack = [(node, titles)]
    while stack:
        node, titles = stack.pop()
        below = titles
        if node.type in ("if_statement", "ternary_expression", "switch_statement"):
            continue  # its tests may not be registered
        if node.type == "call_expression":
            role, title = _role(node), _title(node)
            function = _callback(node)
            body = function.child_by_field_name("body") if function is not None else None
            if role and title is not None and function is not None and body is not None:
                if role == "test":
                    yield SyntaxTest(
                        name=SEPARATOR.join([*titles, title]),
                        node=function,
                        body=body,
                        title=" ".join([*titles, title]),
                    )
                    continue
                below = (*titles, title)
            elif role:
                continue
        stack += [(child, below) for child in reversed(node.named_children)]


def registers(root: Node) -> bool:
    """Return whether a file registers a test or a suite with a runner, skipped ones included."""
    return any(
        node.type == "call_expression"
        and _role(node)
        and any(one.type in FUNCTIONS for one in _arguments(node))
        for node in all_nodes(root)
    )


def _arguments(call: Node) -> list[Node]:
    arguments = call.child_by_field_name("arguments")
    return arguments.named_children if arguments is not None else []


def _role(call: Node) -> str:
    """Return whether a call registers a ``test`` or a ``suite``; empty for all others."""
    function = call.child_by_field_name("function")
    if function is None:
        return ""
    if function.type == "call_expression":  # it.each(table)(title, function)
        function = function.child_by_field_name("function")
    parts = text_of(function).split(".")
    if parts[0] in names.OWNERS:
        parts = parts[1:]
    if not parts or not all(part in names.RUN | names.SUITES | names.TESTS for part in parts):
        return ""
    if any(part in names.SUITES for part in parts):
        return "suite"
    return "test" if parts[0] in names.TESTS else ""


def _title(call: Node) -> str | None:
    arguments = call.child_by_field_name("arguments")
    first = arguments.named_children[0] if arguments is not None and arguments.named_children else None
    if first is None or not (is_text(first) or first.type == "template_string"):
        return None
    return unescaped(value_of(first))


def unescaped(text: str) -> str:
    """Return the text of a string literal with its common escapes resolved and white space joined."""
    return " ".join(re.sub(r"\\(['\"`\\])", r"\1", text).split())


def _callback(call: Node) -> Node | None:
    arguments = call.child_by_field_name("arguments")
    children = arguments.named_children if arguments is not None else []
    if any(child.type == "object" and re.search(r"skip|todo|fail", text_of(child)) for child in children):
        return None
    return next((child for child in children if child.type in FUNCTIONS), None)


def parameter(function: Node) -> str:
    """Return the name of a function's first parameter; empty where it has none."""
    single = function.child_by_field_name("parameter")
    if single is not None:
        return text_of(single)
    parameters = function.child_by_field_name("parameters")
    first = parameters.named_children[0] if parameters is not None and parameters.named_children else None
    return text_of(first.child_by_field_name("pattern") or first) if first is not None else ""


def expressions_of(test: SyntaxTest) -> Iterator[tuple[Node, bool]]:
    """Yield expressions that run in every passing run of a test, and whether it waits for their promise."""
    yield from certain_expressions(test.body)
    uses = uses_of(test, parameter(test.node))
    if len(uses) == 1:
        yield from _before_end(uses[0], test.node)


def uses_of(test: SyntaxTest, name: str) -> list[Node]:
    """Return the places in a test's body that name a parameter; none for an empty name."""
    nodes = all_nodes(test.body) if name else ()
    return [node for node in nodes if node.type == "identifier" and text_of(node) == name]


def _before_end(done: Node, test: Node) -> Iterator[tuple[Node, bool]]:
    """Yield the expressions before ``done()``, the test's only end, in a callback that runs once."""
    call, node = done.parent, done.parent
    if (
        call is None
        or call.type != "call_expression"
        or text_of(call.child_by_field_name("arguments")) != "()"
    ):
        return
    function = None
    while node is not None and node.id != test.id:
        if node.type in SCOPES:
            if not _is_called_once(node):
                return
            function = function or node
        node = node.parent
    body = function.child_by_field_name("body") if function is not None else None
    if body is None or body.type != "statement_block":
        return
    for statement in certain_statements(statements_of(body)):
        if statement.end_byte >= done.start_byte:
            return
        if statement.type == "expression_statement":
            yield statement.named_children[0], False


def _is_called_once(function: Node) -> bool:
    """Return whether a function is the callback of a promise or a timer."""
    call = function.parent.parent if function.parent is not None else None
    called = call.child_by_field_name("function") if call is not None else None
    return text_of(called).rpartition(".")[2] in ("then", "setTimeout", "setImmediate", "nextTick")


def certain_expressions(body: Node) -> Iterator[tuple[Node, bool]]:
    """Yield expressions that run in every passing run, and whether the test waits for their promise."""
    if body.type != "statement_block":
        yield from followed(body, awaited=True)
        return
    for statement in certain_statements(statements_of(body)):
        if statement.type in ("expression_statement", "return_statement") and statement.named_children:
            yield from followed(statement.named_children[0], awaited=statement.type == "return_statement")


def followed(expression: Node, *, awaited: bool) -> Iterator[tuple[Node, bool]]:
    """Yield an expression, and those in callbacks that it certainly calls."""
    while expression.type in ("await_expression", "parenthesized_expression") and expression.named_children:
        awaited = awaited or expression.type == "await_expression"
        expression = expression.named_children[0]
    yield expression, awaited
    if (callback := _called_back(expression, awaited=awaited)) is not None:
        yield from certain_expressions(callback)


def _called_back(call: Node, *, awaited: bool) -> Node | None:
    """Return the body of the callback of ``promise.then(…)`` or ``[…].forEach(…)``."""
    function = call.child_by_field_name("function") if call.type == "call_expression" else None
    arguments = call.child_by_field_name("arguments")
    if function is None or function.type != "member_expression" or arguments is None:
        return None
    parts = arguments.named_children
    if len(parts) != 1 or parts[0].type not in FUNCTIONS:
        return None
    name = text_of(function.child_by_field_name("property"))
    waits = name == "then" and awaited
    is_async = any(child.type == "async" for child in parts[0].children)  # nobody awaits what it returns
    loops = name == "forEach" and not is_async and is_not_empty(function.child_by_field_name("object"))
    return parts[0].child_by_field_name("body") if waits or loops else None


def certain_statements(body: Sequence[Node], *, in_loop: bool = False) -> Iterator[Node]:
    """Yield the statements that run whenever the test ends normally, and whose exceptions fail it."""
    for node in body:
        yield node
        match node.type:
            case "statement_block":
                yield from certain_statements(statements_of(node), in_loop=in_loop)
            case "for_in_statement" if "of" in [child.type for child in node.children]:
                inner = node.child_by_field_name("body")
                if inner is not None and is_not_empty(node.child_by_field_name("right")):
                    yield from certain_statements([inner], in_loop=True)
            case "try_statement" if node.child_by_field_name("handler") is None:
                last = node.child_by_field_name("finalizer")
                inner = node.child_by_field_name("body")
                if last is not None and inner is not None and not may_leave(last, in_loop=True):
                    yield from certain_statements([inner], in_loop=in_loop)
        if may_leave(node, in_loop=in_loop):
            return


def is_not_empty(iterated: Node | None) -> bool:
    """Return whether an expression is an array with a literal in it."""
    return iterated is not None and iterated.type == "array" and any(map(is_literal, iterated.named_children))


def may_leave(node: Node, *, in_loop: bool) -> bool:
    """Return whether a statement may end the function, or in a loop the iteration, around it."""
    leaving = ("return_statement", "break_statement", "continue_statement", "yield_expression")
    return any(
        one.type in (leaving if in_loop else (leaving[0], leaving[3]))
        or (one.type == "property_identifier" and text_of(one) == "skip")
        for one in own_nodes([node], SCOPES)
    )
