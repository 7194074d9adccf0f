"""Opposites of JavaScript assertions: each fails wherever the assertion passes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
from engine.grading.counterfactual.syntax.literals import Edit
from engine.grading.counterfactual.syntax.source import text_of


def opposites(chain: Chain, context: str) -> Iterator[Edit]:
    """Yield assertions turned into their opposite as tests usually spell it."""
    last = chain.links[-1] if chain.links else None
    if last is None:
        yield from _negated_condition(chain)
    elif chain.root == "expect" and chain.arguments is not None and len(chain.arguments) in (1, 2):
        if last.arguments is not None and is_jest(chain):
            yield from _other_matcher(chain, last)
        elif (words := chai_links(chain)) is not None and _is_negatable(words):
            yield from _other_chain(words)
    elif after_should(chain) and (words := chai_links(chain)) is not None:
        if _is_negatable(words):
            yield from _other_chain(words)
    elif is_asserting(chain, context) and len(chain.links) == 1 and last.arguments:
        pairs = names.ASSERT_OPPOSITES if chain.root == "assert" else names.CONTEXT_OPPOSITES
        if last.name in pairs and last.name not in names.ASSERT_EQUAL:
            yield renamed(last, pairs[last.name])
        elif last.name == "ok" and chain.root == "assert":
            yield from _negated_condition(chain)


def _other_matcher(chain: Chain, last: Link) -> Iterator[Edit]:
    """Yield the opposite of a jest matcher: another one, without ``not`` or with it."""
    if has_not(chain.links):
        if last.name in names.NEGATED | names.EQUAL_MATCHERS | names.OPPOSITE_MATCHERS.keys():
            yield _without(chain.links)
    elif last.name in names.OPPOSITE_MATCHERS:
        yield renamed(last, names.OPPOSITE_MATCHERS[last.name])
    elif last.name in names.NEGATED:
        yield Edit(last.node.start_byte, last.node.start_byte, "not.")


def _is_negatable(links: Sequence[Link]) -> bool:
    if has_not(links):
        return links[-1].name in names.CHAI_NEGATED | names.CHAI_EQUAL.keys() | names.CHAI_OPPOSITES.keys()
    return links[-1].name in names.CHAI_NEGATED


def _other_chain(links: Sequence[Link]) -> Iterator[Edit]:
    """Yield the opposite of a chain in chai's language."""
    if sum(link.arguments is not None for link in links[:-1]):
        return  # ``not`` would hold for what comes before as well
    if has_not(links):
        yield _without(links)
    elif links:
        at = links[0].node.end_byte if links[0].name == "to" else links[0].node.start_byte
        yield Edit(at, at, ".not") if links[0].name == "to" else Edit(at, at, "not.")


def negations(chain: Chain) -> Iterator[Edit]:
    """Yield equalities turned into inequalities, where no value is a constant."""
    last = chain.links[-1] if chain.links else None
    if last is None or last.arguments is None or has_not(chain.links):
        return
    if chain.root == "expect" and is_jest(chain) and last.name in names.EQUAL_MATCHERS:
        yield Edit(last.node.start_byte, last.node.start_byte, "not.")
    elif chain.root == "assert" and len(chain.links) == 1 and last.name in names.ASSERT_EQUAL:
        yield renamed(last, names.ASSERT_EQUAL[last.name])
    elif (chain.root == "expect" or after_should(chain)) and last.name in names.CHAI_EQUAL:
        words = chai_links(chain)
        if words is not None and len(last.arguments) == 1:
            yield from _other_chain(words)


def _negated_condition(chain: Chain) -> Iterator[Edit]:
    """Yield ``assert(!x)`` for ``assert(x)`` and the other way round."""
    arguments = chain.links[-1].arguments if chain.links else chain.arguments
    if chain.root != "assert" or not arguments:
        return
    condition = arguments[0]
    start = condition.start_byte
    if condition.type == "unary_expression" and text_of(condition).startswith("!"):
        yield Edit(start, condition.named_children[0].start_byte, "")
    elif condition.type in ("identifier", "member_expression", "call_expression", "subscript_expression"):
        yield Edit(start, start, "!")
    elif condition.type == "binary_expression":
        operator = condition.child_by_field_name("operator")
        other = {"===": "!==", "!==": "===", "==": "!=", "!=": "=="}.get(text_of(operator))
        if operator is not None and other is not None:
            yield Edit(operator.start_byte, operator.end_byte, other)


def _without(links: Sequence[Link]) -> Edit:
    """Return the edit that removes ``not`` and the dot before it."""
    link = next(one for one in links if one.name in ("not", "never"))
    previous = link.node.prev_sibling
    start = previous.start_byte if previous is not None and previous.type == "." else link.node.start_byte
    return Edit(start, link.node.end_byte, "")


def renamed(link: Link, name: str) -> Edit:
    """Return the edit that calls another matcher."""
    return Edit(link.node.start_byte, link.node.end_byte, name)
