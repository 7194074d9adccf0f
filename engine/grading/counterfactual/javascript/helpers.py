"""Functions of a script that compare their arguments, or call one, and let the script fail.

``function check(name, got, want) { if (got !== want) { failures++ } }``, then ``check("a", f(1), 2)``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from tree_sitter import Node

from engine.grading.counterfactual.javascript.aliases import resolved
from engine.grading.counterfactual.javascript.chains import chain_of
from engine.grading.counterfactual.javascript.equalities import equated
from engine.grading.counterfactual.javascript.failures import (
    AT_ONCE,
    Failures,
    Names,
    branches_of,
    is_async,
)
from engine.grading.counterfactual.javascript.functions import certain_statements, may_leave
from engine.grading.counterfactual.syntax.source import all_nodes, statements_of, text_of

_EQUALITIES = frozenset({"Object.is", "isDeepStrictEqual", "util.isDeepStrictEqual"})
_SHAPES = frozenset({"", "null", "null,2", "null,4", "undefined,2"})
"""Further arguments of ``JSON.stringify`` that leave nothing out."""


class ClaimKind(Enum):
    """What a helper asks of a parameter."""

    EQUAL = "equal"
    """To be equal to something."""
    TRUE = "true"
    """To be a condition that holds."""
    CALLED = "called"
    """To be a function that does not throw."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Something that a helper certainly asks of a parameter."""

    parameter: str
    marks: frozenset[str]
    """How a script fails where it does not hold, as in ``Failures.marks``."""
    kind: ClaimKind


@dataclass(frozen=True, slots=True)
class Given:
    """An argument of a call with what its helper asks of it."""

    argument: Node
    claim: Claim
    messages: tuple[Node, ...]
    """Arguments of the call that the helper only shows."""


_Found = tuple[Node, set[str], ClaimKind]
"""Operand, how the script fails where it is not as claimed, and the claim."""


class Helpers:
    """Helpers of a file.

    Args:
        names: the names of the file.
        failures: ways in which it fails.
        assertions: names of known assertions, see ``aliases``.
    """

    def __init__(self, names: Names, failures: Failures, assertions: Mapping[str, str]) -> None:
        self._names = names
        self._failures = failures
        self._assertions = assertions
        self._claims: dict[str, list[Claim]] = {}

    def given(self, call: Node) -> Iterator[Given]:
        """Yield the arguments of a call about which its helper claims something."""
        called = call.child_by_field_name("function") if call.type == "call_expression" else None
        name = text_of(called) if called is not None and called.type == "identifier" else ""
        function = self._names.functions.get(name)
        arguments = call.child_by_field_name("arguments")
        parameters = parameters_of(function) if function is not None else None
        if function is None or arguments is None or parameters is None or is_async(function):
            return
        parts = [one for one in arguments.named_children if "comment" not in one.type]
        if any(one.type == "spread_element" for one in parts):
            return
        given = dict(zip(parameters, parts, strict=False))
        body = function.child_by_field_name("body")
        messages = tuple(given[one] for one in given if body is not None and self._is_only_shown(body, one))
        for claim in self._claims_of(name, function):
            if claim.parameter in given:
                yield Given(given[claim.parameter], claim, messages)

    def _claims_of(self, name: str, function: Node) -> list[Claim]:
        if name not in self._claims:
            self._claims[name] = []  # a helper that calls itself claims nothing
            body = function.child_by_field_name("body")
            parameters = parameters_of(function)
            if body is not None and parameters is not None:
                found = list(self._claimed(body))
                self._claims[name] = [
                    Claim(text_of(node), frozenset(marks), kind)
                    for node, marks, kind in found
                    if text_of(node) in parameters
                    and self._has_no_other_uses(body, text_of(node), {one.id for one, _, _ in found})
                ]
        return self._claims[name]

    def _claimed(self, body: Node) -> Iterator[_Found]:
        """Yield what the body of a helper claims."""
        if body.type != "statement_block":
            yield from self._claimed_by_expression(body, {AT_ONCE})
            return
        statements = statements_of(body)
        known = _conditions(statements)
        for at, node in enumerate(statements):
            yield from self._claimed_by(node, statements[at + 1 :], known)
            if may_leave(node, in_loop=False):
                return

    def _claimed_by(self, node: Node, rest: list[Node], known: Mapping[str, Node]) -> Iterator[_Found]:
        if node.type == "try_statement":
            handler = node.child_by_field_name("handler")
            inner = handler.child_by_field_name("body") if handler is not None else None
            tried = node.child_by_field_name("body")
            failing = self._failures.marks(statements_of(inner)) if inner is not None else set()
            if failing and tried is not None and node.child_by_field_name("finalizer") is None:
                for one in certain_statements(statements_of(tried)):
                    if one.type == "expression_statement" and one.named_children:
                        yield from self._claimed_by_expression(one.named_children[0], failing)
        elif node.type == "expression_statement" and node.named_children:
            yield from self._claimed_by_expression(node.named_children[0], {AT_ONCE})
        elif node.type == "if_statement":
            condition = node.child_by_field_name("condition")
            then, otherwise = branches_of(node)
            if not otherwise and any(one.type == "return_statement" for one in then):
                otherwise = rest
            for branch, wanted in ((then, False), (otherwise, True)):
                failing = self._failures.marks(branch)
                if failing and condition is not None:
                    for one, kind in claimed_by(condition, known, holds=wanted):
                        yield one, failing, kind

    def _claimed_by_expression(self, expression: Node, thrown: set[str]) -> Iterator[_Found]:
        """Yield the operands of an expression that throws where they are unequal.

        Args:
            thrown: how the script fails where it throws.
        """
        chain = resolved(chain_of(expression), self._assertions)
        if chain.root == "assert" and [link.name for link in chain.links] in ([], ["ok"]):
            condition = chain.arguments or (chain.links[0].arguments if chain.links else None)
            for operand, kind in claimed_by(condition[0], {}, holds=True) if condition else ():
                yield operand, thrown, kind
        for operand, _ in equated(chain, "", False) if chain.root else ():
            yield _bare(operand), thrown, ClaimKind.EQUAL
        for given in self.given(expression):
            marks = set(given.claim.marks)
            yield given.argument, thrown if AT_ONCE in marks else marks, given.claim.kind
        called = expression.child_by_field_name("function")
        arguments = text_of(expression.child_by_field_name("arguments"))
        if called is not None and called.type == "identifier" and arguments == "()":
            yield called, thrown, ClaimKind.CALLED

    def _has_no_other_uses(self, body: Node, name: str, claimed: Collection[int]) -> bool:
        """Return whether a parameter is only compared or called as claimed, and shown."""
        if re.search(r"\barguments\b|\beval\b", text_of(body)):
            return False
        return all(one.id in claimed or self._is_shown(one, body) for one in _uses(body, name))

    def _is_only_shown(self, body: Node, name: str) -> bool:
        return all(self._is_shown(one, body) for one in _uses(body, name))

    def _is_shown(self, use: Node, body: Node) -> bool:
        """Return whether a place only shows a value: to ``console``, in an error, in a list."""
        node = use
        while node.parent is not None and node != body:
            node = node.parent
            if node.type == "throw_statement" or (
                node.type == "new_expression"
                and text_of(node.child_by_field_name("constructor")).endswith("Error")
            ):
                return True
            if node.type == "call_expression":
                if self._failures.marks_of(node):
                    return True
                chain = chain_of(node)
                words = [link.name for link in chain.links]
                if chain.root == "console" or words[-1:] == ["push"]:
                    return True
                if chain.root == "process" and words[:1] in (["stdout"], ["stderr"]):
                    return True
        return False


def parameters_of(function: Node) -> list[str] | None:
    """Return the names of a function's parameters; None where one is a pattern or takes the rest."""
    single = function.child_by_field_name("parameter")
    if single is not None:
        return [text_of(single)]
    found: list[str] = []
    parameters = function.child_by_field_name("parameters")
    for one in parameters.named_children if parameters is not None else ():
        name: Node | None = one
        if one.type in ("required_parameter", "optional_parameter"):
            name = one.child_by_field_name("pattern")
        elif one.type == "assignment_pattern":
            name = one.child_by_field_name("left")
        if name is None or name.type != "identifier":
            if "comment" in one.type:
                continue
            return None
        found.append(text_of(name))
    return found


def _conditions(statements: Collection[Node]) -> dict[str, Node]:
    """Return name → value of the constants of a function's body."""
    return {
        text_of(one.child_by_field_name("name")): value
        for statement in statements
        if statement.type == "lexical_declaration" and text_of(statement).startswith("const")
        for one in statement.named_children
        if (value := one.child_by_field_name("value")) is not None
    }


def claimed_by(
    condition: Node, known: Mapping[str, Node], *, holds: bool
) -> Iterator[tuple[Node, ClaimKind]]:
    """Yield what a condition asks where it must hold, or must not.

    Args:
        known: constants that may stand for a part of it.
    """
    node = condition
    while node.type == "parenthesized_expression" and node.named_children:
        node = node.named_children[0]
    if node.type == "identifier":
        inner = known.get(text_of(node))
        if inner is not None and inner.type != "identifier":
            yield from claimed_by(inner, known, holds=holds)
        elif inner is None and holds:
            yield node, ClaimKind.TRUE
    elif node.type == "unary_expression" and text_of(node).startswith("!"):
        yield from claimed_by(node.named_children[-1], known, holds=not holds)
    elif node.type == "binary_expression":
        operator = text_of(node.child_by_field_name("operator"))
        if operator == ("&&" if holds else "||"):
            for side in node.named_children:
                yield from claimed_by(side, known, holds=holds)
        elif operator in (("===", "==") if holds else ("!==", "!=")):
            yield from ((_through(side, known), ClaimKind.EQUAL) for side in node.named_children)
    elif node.type == "call_expression" and holds:
        arguments = node.child_by_field_name("arguments")
        if text_of(node.child_by_field_name("function")) in _EQUALITIES and arguments is not None:
            yield from ((_bare(one), ClaimKind.EQUAL) for one in arguments.named_children[:2])


def _through(operand: Node, known: Mapping[str, Node]) -> Node:
    """Return an operand, or the one whose text a constant of the function holds."""
    if operand.type == "identifier" and text_of(operand) in known:
        return _bare(known[text_of(operand)])
    return _bare(operand)


def _bare(operand: Node) -> Node:
    """Return an operand, or what ``JSON.stringify`` makes a text of it."""
    if text_of(operand.child_by_field_name("function")) == "JSON.stringify":
        arguments = operand.child_by_field_name("arguments")
        first, *others = arguments.named_children if arguments is not None else [None]
        if first is not None and ",".join(map(text_of, others)) in _SHAPES:
            return first
    return operand


def _uses(body: Node, name: str) -> list[Node]:
    names = ("identifier", "shorthand_property_identifier")
    return [one for one in all_nodes(body) if one.type in names and text_of(one) == name]
