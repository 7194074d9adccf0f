"""False versions of Go assertions.

Operators of Go cannot be redefined, so a condition and its opposite exclude each other; constants change only
where equality alone decides whether the test fails.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tree_sitter import Node

from engine.grading.counterfactual.base import MutantKind
from engine.grading.counterfactual.go import names
from engine.grading.counterfactual.go.functions import (
    GoTest,
    arguments_of,
    certain_statements,
    fails,
)
from engine.grading.counterfactual.go.values import leaves
from engine.grading.counterfactual.syntax.bindings import ExpectedNames
from engine.grading.counterfactual.syntax.literals import Edit, is_literal, literal_edit
from engine.grading.counterfactual.syntax.mutator import Candidate
from engine.grading.counterfactual.syntax.source import SyntaxSource, all_nodes, is_comparison, text_of

_IMPORT = re.compile(
    rb'^[ \t]*(?:import[ \t]+)?(\w*)[ \t]*"([\w./~-]+?)(?:[./]v\d+)?"[ \t]*(?://.*)?$', re.MULTILINE
)
_METHOD = re.compile(rb"^func\s*\([^)]*\)\s*(\w+)\s*\(", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Equality:
    """Two expressions that a passing test has found equal."""

    left: Node
    right: Node
    within: Node
    messages: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Scope:
    """Surroundings of a statement."""

    context: str
    is_suite: bool
    instances: frozenset[str]
    """Variables with assertions that need no context."""
    packages: frozenset[str]
    """Names under which packages with known assertions are imported."""
    own: frozenset[str]
    """Methods that the file defines."""
    is_testify: bool
    """Whether they are all testify's."""


def scope_of(source: SyntaxSource, test: GoTest) -> Scope:
    """Return the surroundings of a test's statements."""
    body = text_of(test.body)
    found = [(name.decode(), path) for name, path in _IMPORT.findall(source.content)]
    paths = {name or path.rpartition(b"/")[2].decode(): path for name, path in found}
    known = {name: path for name, path in paths.items() if any(one in path for one in names.LIBRARIES)}
    return Scope(
        context=test.context,
        is_suite=test.is_suite,
        instances=frozenset(
            name for name in names.PACKAGES & known.keys() if f"{name} := {name}.New(" in body
        ),
        packages=frozenset(known),
        own=frozenset(name.decode() for name in _METHOD.findall(source.content)),
        is_testify=all(b"stretchr/testify" in path for path in known.values()),
    )


def changed_candidates(source: SyntaxSource, test: GoTest) -> Iterator[Candidate]:
    """Yield candidates of the conditions and assertions that every passing run evaluates."""
    scope = scope_of(source, test)
    statements = list(certain_statements(test.body, test.context))
    found = [equality for statement in statements for equality in equalities(statement, scope)]
    names_bound = _expected_names(test, found)
    for equality in found:
        for side in (equality.left, equality.right):
            bound = (
                None
                if text_of(equality.left) == text_of(equality.right)
                else names_bound.value_of(text_of(side))
            )
            messages = equality.messages if bound is None else ()
            within = equality.within if bound is None else (bound.parent or bound)
            for leaf in leaves(bound or side):
                edit = literal_edit(leaf, source.words)
                if edit is not None:
                    yield _candidate(MutantKind.VALUE, within, edit, messages)
            if (status := _other_status(source, side)) is not None:
                yield _candidate(MutantKind.VALUE, equality.within, status)
    finders: tuple[Callable[[Node, Scope], Iterator[Candidate]], ...] = (_opposites, _other_conditions)
    for find in finders:
        for statement in statements:
            yield from find(statement, scope)


def _expected_names(test: GoTest, found: Sequence[Equality]) -> ExpectedNames:
    expected = ExpectedNames(test.body, _declared)
    for one in found:
        expected.compared(one.left.byte_range, one.right.byte_range)
        for message in one.messages:
            expected.shown(*message.byte_range)
    return expected


def _declared(name: Node) -> Node | None:
    """Return the value of ``name := value`` or ``var name = value``."""
    parent = names_list = name.parent
    if (
        names_list is not None
        and names_list.type == "expression_list"
        and len(names_list.named_children) == 1
    ):
        parent = names_list.parent
        left = parent.child_by_field_name("left") if parent is not None else None
        if (
            parent is None
            or parent.type != "short_var_declaration"
            or left is None
            or left.id != names_list.id
        ):
            return None
        return _only(parent.child_by_field_name("right"))
    if parent is not None and parent.type in ("var_spec", "const_spec"):
        named = parent.children_by_field_name("name")
        return _only(parent.child_by_field_name("value")) if [one.id for one in named] == [name.id] else None
    return None


def _only(values: Node | None) -> Node | None:
    return values.named_children[0] if values is not None and len(values.named_children) == 1 else None


def _other_status(source: SyntaxSource, side: Node) -> Edit | None:
    """Return the edit of a constant of ``net/http``, all of which differ."""
    other = names.STATUSES.get(text_of(side))
    if other is None or b'"net/http"' not in source.content:
        return None
    return Edit(side.start_byte, side.end_byte, other)


def equalities(statement: Node, scope: Scope) -> Iterator[Equality]:
    """Yield the equalities that a statement asserts."""
    if statement.type == "if_statement":
        block = statement.child_by_field_name("consequence")
        condition = statement.child_by_field_name("condition")
        if condition is not None and fails(block, scope.context):
            messages = tuple(all_nodes(block)) if block is not None else ()
            for pair in _unequal(condition):
                yield Equality(*pair, statement, messages)
    elif (found := _assertion(statement, scope)) is not None:
        name, arguments = found
        if name in names.EQUAL and len(arguments) >= 2:
            yield Equality(arguments[0], arguments[1], statement, tuple(arguments[2:]))
        elif name == "Len" and len(arguments) >= 2:
            yield Equality(arguments[1], arguments[1], statement, tuple(arguments[2:]))
        elif name == "True" and arguments and is_comparison(arguments[0], "=="):
            left, right = arguments[0].named_children[:2]
            yield Equality(left, right, statement, tuple(arguments[1:]))


def _unequal(condition: Node) -> Iterator[tuple[Node, Node]]:
    """Yield the pairs of which a condition says that they differ, each enough for the whole to hold."""
    operator = text_of(condition.child_by_field_name("operator"))
    if condition.type == "parenthesized_expression":
        yield from _unequal(condition.named_children[0])
    elif condition.type == "binary_expression" and operator == "||":
        for part in condition.named_children:
            yield from _unequal(part)
    elif condition.type == "binary_expression" and operator == "!=":
        left, right = (condition.child_by_field_name(side) for side in ("left", "right"))
        if left is not None and right is not None:
            yield left, right
    elif condition.type == "unary_expression" and operator == "!":
        call = condition.named_children[0]
        arguments = arguments_of(call)
        if text_of(call.child_by_field_name("function")) in names.COMPARES and len(arguments) == 2:
            yield arguments[0], arguments[1]


def _assertion(statement: Node, scope: Scope) -> tuple[str, Sequence[Node]] | None:
    """Return name and arguments of a library's assertion, without the context."""
    found = _called(statement)
    if found is None or not scope.packages:
        return None
    owner, field, arguments = found
    name = text_of(field)
    if any(argument.type == "variadic_argument" for argument in arguments):
        return None
    known = {*names.EQUAL, *names.OPPOSITES, "Len"}
    plain = name.removesuffix("f") if name not in known else name
    if plain not in known:
        return None
    if scope.is_suite:
        owners = {f"{scope.context}{part}" for part in ("", ".Require()", ".Assert()")}
        return (plain, arguments) if owner in owners and name not in scope.own else None
    if owner in scope.instances:
        return plain, arguments
    if owner in names.PACKAGES & scope.packages and arguments and text_of(arguments[0]) == scope.context:
        return plain, arguments[1:]
    return None


def _called(statement: Node) -> tuple[str, Node, list[Node]] | None:
    """Return owner, name and arguments of the method or function that a statement calls."""
    call = statement.named_children[0] if statement.type == "expression_statement" else None
    function = (
        call.child_by_field_name("function") if call is not None and call.type == "call_expression" else None
    )
    if call is None or function is None or function.type != "selector_expression":
        return None
    field = function.child_by_field_name("field")
    return (
        None
        if field is None
        else (text_of(function.child_by_field_name("operand")), field, arguments_of(call))
    )


def _opposites(statement: Node, scope: Scope) -> Iterator[Candidate]:
    """Yield assertions of testify replaced by their opposites."""
    found, called = _assertion(statement, scope), _called(statement)
    if found is None or called is None or not scope.is_testify:
        return
    name, arguments = found
    literal = any(True for argument in arguments[:2] for _ in leaves(argument))
    other = names.OPPOSITES.get(name) or ("" if literal else names.EQUAL.get(name, ""))
    if other:
        suffix = "f" if text_of(called[1]) != name else ""
        yield _candidate(
            MutantKind.VALUE, statement, Edit(called[1].start_byte, called[1].end_byte, other + suffix)
        )


def _other_conditions(statement: Node, scope: Scope) -> Iterator[Candidate]:
    """Yield conditions of failures replaced by their opposites; loud where a message would contradict."""
    condition = statement.child_by_field_name("condition") if statement.type == "if_statement" else None
    if condition is None or not fails(statement.child_by_field_name("consequence"), scope.context):
        return
    start = condition.start_byte
    operator = condition.child_by_field_name("operator")
    if condition.type == "unary_expression" and text_of(operator) == "!":
        edit = Edit(start, condition.named_children[0].start_byte, "")
        yield _candidate(MutantKind.VALUE, statement, edit)
    elif condition.type in ("identifier", "call_expression", "selector_expression"):
        yield _candidate(MutantKind.VALUE, statement, Edit(start, start, "!"))
    elif condition.type == "binary_expression" and operator is not None:
        other = {"==": "!=", "!=": "=="}.get(text_of(operator))
        block = text_of(statement.child_by_field_name("consequence"))
        sides = [text_of(side) for side in condition.named_children if side.type != "nil"]
        if other is None:
            edit = Edit(start, condition.end_byte, f"!({text_of(condition)})")
            yield _candidate(MutantKind.CHANGED, statement, edit)
        else:
            is_shown = any(side in block for side in sides)
            kind = MutantKind.CHANGED if is_shown else MutantKind.VALUE
            yield _candidate(kind, statement, Edit(operator.start_byte, operator.end_byte, other))


def _candidate(kind: MutantKind, within: Node, edit: Edit, messages: Sequence[Node] = ()) -> Candidate:
    return Candidate(
        kind=kind,
        within=(within.start_byte, within.end_byte),
        edits=(edit,),
        messages=tuple((one.start_byte, text_of(one)) for one in messages if is_literal(one)),
    )
