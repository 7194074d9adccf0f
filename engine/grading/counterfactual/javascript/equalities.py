"""Expressions that JavaScript assertions compare for equality."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tree_sitter import Node

from engine.grading.counterfactual.javascript import names
from engine.grading.counterfactual.javascript.chains import (
    Chain,
    Link,
    after_should,
    chai_links,
    has_not,
    is_asserting,
    is_jest,
)
from engine.grading.counterfactual.syntax.literals import is_literal, is_text
from engine.grading.counterfactual.syntax.source import is_comparison, text_of


def equated(chain: Chain, context: str, awaited: bool) -> Iterator[tuple[Node, Sequence[Node]]]:
    """Yield the expressions that an assertion compares for equality, with its messages."""
    links, last = chain.links, chain.links[-1] if chain.links else None
    if chain.root == "expect" and chain.arguments is not None and len(chain.arguments) in (1, 2):
        if last is None or last.arguments is None or has_not(links):
            return
        messages = chain.arguments[1:]
        if is_jest(chain) and last.name in names.MATCHERS:
            place = names.MATCHERS[last.name]
            for operand in last.arguments[place : place + 1]:
                yield operand, messages
        elif is_jest(chain) and last.name in names.ALL_ARGUMENTS:
            for operand in last.arguments:
                yield operand, messages
        else:
            yield from _chai_equated(chain, last)
    elif after_should(chain) and last is not None and last.arguments is not None:
        yield from _chai_equated(chain, last)
    elif is_asserting(chain, context) or (chain.root in names.BARE_EQUAL and not links):
        yield from _asserted(chain)
    elif _is_request(chain, context, awaited):
        for link in links:
            if link.name == "expect":
                yield from ((operand, ()) for operand in _answered(link.arguments or (), context))


def _answered(arguments: Sequence[Node], context: str) -> Sequence[Node]:
    """Return what supertest's ``expect(status, body)``, ``(body)`` or ``(header, value)`` compare."""
    operands = [one for one in arguments if text_of(one) != context]
    if not operands or not all(is_literal(one) or one.type == "object" for one in operands):
        return ()
    return operands if operands[0].type != "string" else operands[-1:]


def _asserted(chain: Chain) -> Iterator[tuple[Node, Sequence[Node]]]:
    """Yield the compared arguments of ``assert.equal(a, b)``, ``assert(a === b)``, ``t.is(a, b)``."""
    name = chain.links[-1].name if chain.links else chain.root
    arguments = chain.links[-1].arguments if chain.links else chain.arguments
    if not arguments or any(one.type == "spread_element" for one in arguments):
        return
    equal = names.ASSERT_EQUAL if chain.root == "assert" else names.CONTEXT_EQUAL
    is_equal = name in equal or (not chain.links and name in names.BARE_EQUAL)
    is_nested = len(chain.links) == 2 and chain.links[0].name == "assert" and name in names.ASSERT_EQUAL
    if (len(chain.links) <= 1 and is_equal) or is_nested:
        for operand in arguments[:2] if len(arguments) in (2, 3) else ():
            yield operand, arguments[2:]
    elif name in ("assert", "ok") and len(chain.links) <= 1 and is_comparison(arguments[0], "==", "==="):
        for operand in arguments[0].named_children:
            yield operand, arguments[1:]


def _chai_equated(chain: Chain, last: Link) -> Iterator[tuple[Node, Sequence[Node]]]:
    words = chai_links(chain)
    if words is None or has_not(words) or last.arguments is None:
        return
    place = names.CHAI_EQUAL.get(last.name)
    if place is not None:
        for operand in last.arguments[place : place + 1]:
            yield operand, last.arguments[place + 1 :]


def _is_request(chain: Chain, context: str, awaited: bool) -> bool:
    """Return whether a chain is a supertest request whose end the test waits for."""
    if chain.root != "request" or not chain.links:
        return False
    last = chain.links[-1].arguments
    ends = bool(last) and last is not None and bool(context) and text_of(last[-1]) == context
    return chain.links[-1].name in ("expect", "end") and (ends or awaited)


def leaves(node: Node) -> Iterator[Node]:
    """Yield the literals of an expression, each of which decides alone whether the whole is equal."""
    if is_literal(node):
        yield node
    elif node.type == "unary_expression" and text_of(node).startswith("-"):
        yield from (one for one in node.named_children if one.type == "number" and not _is_zero(one))
    elif is_comparison(node, "+"):
        yield from (one for part in node.named_children for one in leaves(part) if is_text(one))
    elif node.type == "array":
        if not any(child.type == "spread_element" for child in node.named_children):
            for child in node.named_children:
                yield from leaves(child)
    elif node.type == "object":
        yield from _values_of_object(node)
    elif node.type in ("parenthesized_expression", "as_expression", "satisfies_expression"):
        yield from leaves(node.named_children[0])


def _is_zero(number: Node) -> bool:
    return not re.search(r"[1-9a-fA-F]", text_of(number))


def _values_of_object(node: Node) -> Iterator[Node]:
    pairs = [child for child in node.named_children if "comment" not in child.type]
    keys = [text_of(pair.child_by_field_name("key") or pair).strip("'\"") for pair in pairs]
    known = {"pair", "shorthand_property_identifier"}
    if any(pair.type not in known for pair in pairs) or len(set(keys)) != len(keys):
        return
    if any(key.startswith("[") or key == "__proto__" for key in keys):
        return
    for pair in pairs:
        value = pair.child_by_field_name("value")
        if value is not None:
            yield from leaves(value)
