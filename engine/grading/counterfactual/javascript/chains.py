"""Chains of member accesses and calls, e.g. ``expect(x).not.toBe(3)``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tree_sitter import Node

from engine.grading.counterfactual.javascript import names
from engine.grading.counterfactual.syntax.source import text_of


@dataclass(frozen=True, slots=True)
class Link:
    """One property of a chain."""

    name: str
    node: Node
    """The property's name."""
    arguments: tuple[Node, ...] | None
    """Arguments where it is called."""


@dataclass(frozen=True, slots=True)
class Chain:
    """A root expression and the links behind it."""

    root: str
    """Name of the first identifier; empty where it is another expression."""
    arguments: tuple[Node, ...] | None
    """Arguments where the root itself is called."""
    links: tuple[Link, ...]


def chain_of(expression: Node) -> Chain:
    """Return the chain of an expression."""
    links: list[Link] = []
    arguments: tuple[Node, ...] | None = None
    node = expression
    while True:
        if node.type == "non_null_expression":
            node = node.named_children[0]
        elif node.type == "call_expression":
            inner = node.child_by_field_name("function")
            if arguments is not None or inner is None:
                return Chain("", arguments, tuple(reversed(links)))
            arguments, node = _arguments(node), inner
        elif node.type == "member_expression":
            name = node.child_by_field_name("property")
            inner = node.child_by_field_name("object")
            if name is None or inner is None:
                return Chain("", arguments, tuple(reversed(links)))
            links.append(Link(text_of(name), name, arguments))
            arguments, node = None, inner
        else:
            name_of_root = text_of(node) if node.type == "identifier" else ""
            return Chain(name_of_root, arguments, tuple(reversed(links)))


def _arguments(call: Node) -> tuple[Node, ...]:
    node = call.child_by_field_name("arguments")
    if node is None:
        return ()
    if node.type != "arguments":
        return (node,)
    return tuple(child for child in node.named_children if "comment" not in child.type)


def is_asserting(chain: Chain, context: str) -> bool:
    """Return whether a chain begins with ``assert`` or the context of the test."""
    return chain.root == "assert" or (bool(context) and chain.root == context)


def is_jest(chain: Chain) -> bool:
    """Return whether a chain has jest's form: a matcher behind ``not``, ``resolves`` or ``rejects``."""
    return all(
        link.arguments is None and link.name in ("resolves", "rejects", "not") for link in chain.links[:-1]
    )


def chai_links(chain: Chain) -> Sequence[Link] | None:
    """Return the links of a chain in chai's language; None where one is unknown."""
    links = chain.links
    if (place := after_should(chain)) and chain.root != "expect":
        links = links[place:]
    for link in links[:-1]:
        if link.name in names.CHAI_WORDS | {"not", "eventually"} and link.arguments is None:
            continue
        if link.name not in names.CHAI_CALLS or link.arguments is None:
            return None
    return links


def after_should(chain: Chain) -> int:
    """Return the place after ``should``; 0 where the chain has none."""
    return next(
        (
            place
            for place, link in enumerate(chain.links, 1)
            if link.name == "should" and link.arguments is None
        ),
        0,
    )


def has_not(links: Sequence[Link]) -> bool:
    """Return whether links hold a negation."""
    return any(link.name in ("not", "never") for link in links)
