"""False versions of JavaScript assertions.

Sound for every solution: constants change only where equality alone decides, and a matcher's opposite fails
wherever it passes. Names of matchers are a closed list; unknown ones are left alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tree_sitter import Node

from engine.grading.counterfactual.base import MutantKind
from engine.grading.counterfactual.javascript import names
from engine.grading.counterfactual.javascript.chains import (
    Chain,
    Link,
    after_should,
    chai_links,
    chain_of,
    has_not,
    is_jest,
)
from engine.grading.counterfactual.javascript.equalities import equated, leaves
from engine.grading.counterfactual.javascript.functions import expressions_of, parameter, uses_of
from engine.grading.counterfactual.javascript.imports import own_names
from engine.grading.counterfactual.javascript.opposites import negations, opposites, renamed
from engine.grading.counterfactual.syntax.bindings import ExpectedNames, declared
from engine.grading.counterfactual.syntax.literals import Edit, is_literal, literal_edit
from engine.grading.counterfactual.syntax.mutator import Candidate, SyntaxTest
from engine.grading.counterfactual.syntax.source import SyntaxSource, text_of


@dataclass(frozen=True, slots=True)
class _Place:
    """Surroundings of an assertion."""

    context: str
    """Name of the first parameter of the test: a context, or the function that ends it."""
    awaited: bool
    """Whether the test waits for the expression's promise."""
    words: Sequence[str]


def changed_candidates(source: SyntaxSource, test: SyntaxTest) -> Iterator[Candidate]:
    """Yield candidates of the assertions that every passing run executes: values first, then opposites."""
    context = parameter(test.node)
    ends_once = len(uses_of(test, context)) == 1
    own = own_names(source)
    if names.TOLERANT.search(source.content):
        return
    certain = [
        (expression, chain, _Place(context, awaited, source.words))
        for expression, awaited in expressions_of(test)
        for chain in (chain_of(expression),)
        if chain.root not in own
        and not _is_loose(chain)
        and (awaited or not _is_promised(chain))
        and (awaited or ends_once or chain.root != "request")
    ]
    valued: set[int] = set()
    for expression, chain, place in certain:
        for edit, messages in _values(chain, place):
            valued.add(expression.id)
            yield _candidate(expression, edit, messages)
    yield from _names(test, certain)
    for expression, chain, _ in certain:
        for edit in opposites(chain, context):
            yield _candidate(expression, edit, ())
    for expression, chain, _ in certain:
        for edit in negations(chain) if expression.id not in valued else ():
            yield _candidate(expression, edit, ())


def _names(test: SyntaxTest, certain: Sequence[tuple[Node, Chain, _Place]]) -> Iterator[Candidate]:
    """Yield candidates that change the value of a name that serves as an expected value alone."""
    expected = ExpectedNames(test.body, declared("variable_declarator"))
    operands: list[tuple[Node, Sequence[str]]] = []
    for _, chain, place in certain:
        own = [operand for operand, _ in equated(chain, place.context, place.awaited)]
        subjects = [text_of(one) for one in chain.arguments or ()]
        for operand in own:
            expected.compared(operand.byte_range, operand.byte_range)
            if operand.type == "identifier" and [*subjects, *map(text_of, own)].count(text_of(operand)) == 1:
                operands.append((operand, place.words))
    for operand, words in operands:
        value = expected.value_of(text_of(operand))
        for leaf in leaves(value) if value is not None else ():
            edit = literal_edit(leaf, words)
            if edit is not None and value is not None:
                yield _candidate(value.parent or value, edit, ())


def _candidate(within: Node, edit: Edit, messages: Sequence[Node]) -> Candidate:
    return Candidate(
        kind=MutantKind.VALUE,
        within=within.byte_range,
        edits=(edit,),
        messages=tuple((one.start_byte, text_of(one)) for one in messages if is_literal(one)),
    )


def _is_loose(chain: Chain) -> bool:
    return any(names.LOOSE.search(link.name) for link in chain.links)


def _is_promised(chain: Chain) -> bool:
    return any(link.name in ("resolves", "rejects", "eventually") for link in chain.links)


def _values(chain: Chain, place: _Place) -> Iterator[tuple[Edit, Sequence[Node]]]:
    """Yield edits of what an assertion expects, with the assertion's messages."""
    for operand, messages in equated(chain, place.context, place.awaited):
        for leaf in leaves(operand):
            edit = literal_edit(leaf, place.words)
            if edit is not None:
                yield edit, messages
    last = chain.links[-1] if chain.links else None
    if last is None or has_not(chain.links):
        return
    is_chai = (chain.root == "expect" or after_should(chain)) and chai_links(chain) is not None
    if is_chai and last.name in names.CHAI_OPPOSITES and not last.arguments:
        yield renamed(last, names.CHAI_OPPOSITES[last.name]), ()
    yield from ((edit, ()) for edit in _errors(chain, last))


def _errors(chain: Chain, last: Link) -> Iterator[Edit]:
    """Yield edits that expect an unrelated error."""
    expected = None
    if not last.arguments:
        return
    if chain.root == "expect" and is_jest(chain) and last.name in ("toThrow", "toThrowError"):
        expected = last.arguments[0]
    elif (
        chain.root == "assert"
        and len(chain.links) == 1
        and last.name == "throws"
        and len(last.arguments) == 2
    ):
        expected = last.arguments[1]
    if expected is not None and text_of(expected) in names.ERRORS:
        other = names.ERRORS[text_of(expected)]
        yield Edit(expected.start_byte, expected.end_byte, other)
