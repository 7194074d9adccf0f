"""False versions of JavaScript assertions.

Sound for every solution: constants change only where equality alone decides, and a matcher's opposite fails
wherever it passes. Names of matchers are a closed list; unknown ones are left alone.
"""

from __future__ import annotations

import random
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
from engine.grading.counterfactual.javascript.scripts import Script
from engine.grading.counterfactual.syntax.bindings import ExpectedNames, declared
from engine.grading.counterfactual.syntax.literals import Edit, is_literal, literal_edit
from engine.grading.counterfactual.syntax.mutator import Candidate, SyntaxTest
from engine.grading.counterfactual.syntax.source import SyntaxSource, text_of


@dataclass(frozen=True, slots=True, kw_only=True)
class _Certain:
    """An expression that every passing run evaluates, with what it compares."""

    expression: Node
    chain: Chain
    compared: Sequence[tuple[Node, Sequence[Node]]]
    """Operands of equalities, with messages that may name them."""


def changed_candidates(source: SyntaxSource, test: SyntaxTest) -> Iterator[Candidate]:
    """Yield candidates of the assertions that every passing run executes: values first, then opposites."""
    context = parameter(test.node)
    ends_once = len(uses_of(test, context)) == 1
    certain = [
        _Certain(expression=expression, chain=chain, compared=[*equated(chain, context, awaited)])
        for expression, awaited in expressions_of(test)
        for chain in (chain_of(expression),)
        if (awaited or not _is_promised(chain)) and (awaited or ends_once or chain.root != "request")
    ]
    yield from _changed(source, test, certain, context)


def script_candidates(source: SyntaxSource, script: Script) -> Iterator[Candidate]:
    """Yield candidates of a script's assertions and helpers, one of each if there are several.

    The last assertion leads: what forges by an exit has done so before it. Nobody knows which of the others
    need a solution, so that variants take different ones.
    """
    asserting = [step for step in script.steps if script.asserts(step)]
    others = asserting[:-1]
    random.Random(source.path).shuffle(others)
    certain = [
        _Certain(
            expression=step.expression,
            chain=chain,
            compared=[*equated(chain, "", step.awaited), *script.compared(step)],
        )
        for step in (*asserting[-1:], *others)
        for chain in (script.chain(step),)
        if step.awaited or not _is_promised(chain)
    ]
    found = [*_changed(source, script.test, certain, "")]
    first = {one.within: one for one in reversed(found)}
    yield from (one for one in found if len(first) == 1 or first[one.within] is one)


def _changed(
    source: SyntaxSource, test: SyntaxTest, found: Sequence[_Certain], context: str
) -> Iterator[Candidate]:
    own = own_names(source)
    if names.TOLERANT.search(source.content):
        return
    certain = [one for one in found if one.chain.root not in own and not _is_loose(one.chain)]
    valued: set[int] = set()
    for one in certain:
        for edit, messages in _values(one, source.words):
            valued.add(one.expression.id)
            yield _candidate(one.expression, edit, messages)
    yield from _names(test, certain, source.words)
    for one in certain:
        for edit in opposites(one.chain, context):
            yield _candidate(one.expression, edit, ())
    for one in certain:
        for edit in negations(one.chain) if one.expression.id not in valued else ():
            yield _candidate(one.expression, edit, ())


def _names(test: SyntaxTest, certain: Sequence[_Certain], words: Sequence[str]) -> Iterator[Candidate]:
    """Yield candidates that change the value of a name that serves as an expected value alone."""
    expected = ExpectedNames(test.body, declared("variable_declarator"))
    operands: list[Node] = []
    for one in certain:
        own = [operand for operand, _ in one.compared]
        subjects = [text_of(argument) for argument in one.chain.arguments or ()]
        for operand in own:
            expected.compared(operand.byte_range, operand.byte_range)
            if operand.type == "identifier" and [*subjects, *map(text_of, own)].count(text_of(operand)) == 1:
                operands.append(operand)
    for operand in operands:
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


def _values(certain: _Certain, words: Sequence[str]) -> Iterator[tuple[Edit, Sequence[Node]]]:
    """Yield edits of what an assertion expects, with the assertion's messages."""
    chain = certain.chain
    for operand, messages in certain.compared:
        for leaf in leaves(operand):
            edit = literal_edit(leaf, words)
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
