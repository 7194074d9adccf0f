"""Mutants with another expected value, which objects equal to everything and looked-up answers pass.

A literal is changed where it is written: in the assertion, in a variable that is only compared, in a table.
Where the expected side of an equality is computed, a function around it returns another value.
Sound for every solution, not only for the gold patch: no value satisfies an assertion both before and after.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from engine.grading.counterfactual.base import Mutant, MutantKind, some_of_each_line
from engine.grading.counterfactual.python import names
from engine.grading.counterfactual.python.expectations import Expectation, Expectations
from engine.grading.counterfactual.python.functions import TestFunction, dotted
from engine.grading.counterfactual.python.operands import EXACT, Operand, Tolerance
from engine.grading.counterfactual.python.source import Edit, PythonSource
from engine.python_syntax import parse_python

_MAX_OPERANDS = 100
_MAX_LEAVES = 20
_CHOICES = 3
_SHIFTS = range(1, _CHOICES + 1)
"""Differences of other values from a literal, one for each variant of a row."""
_BUILD = re.compile(r"(?<=\w)[^\w\n]{0,3}[+#;?]")
"""Start of the part of versions, addresses and header fields that comparisons may ignore."""
_EXPECTED = re.compile(r"(?i)expect|want|correct|should|golden|truth")
_ACTUAL = re.compile(r"(?i)actual|result|got|found|output|response")
_OTHER_ITEM = '("other",)'
_OTHER_WORDS = " other 7391"


def value_mutants(source: PythonSource, function: TestFunction) -> Iterator[Mutant]:
    """Yield the mutants of a function with another expected value."""
    yield from some_of_each_line(_ValueMutants(source, function).all())


class _ValueMutants:
    def __init__(self, source: PythonSource, function: TestFunction) -> None:
        self._source = source
        self._function = function
        self._expectations = Expectations(source, function)

    def all(self) -> Iterator[Mutant | None]:
        """Yield the mutants of literals, then those of computed values that are compared with no literal."""
        with_literal: set[int] = set()
        expected_operands = list(islice(self._expectations, _MAX_OPERANDS))
        for operand, expectation in expected_operands:
            for edits in self._literal_edits(expectation):
                if (mutant := self._in_rows(expectation, edits)) is not None:
                    with_literal |= {id(operand.node), id(operand.other)}
                    yield mutant
        for operand, expectation in expected_operands:
            if id(operand.node) not in with_literal and _is_expected(operand):
                yield from self._computed(operand, expectation)
        for statement in self._expectations.statements:
            yield from self._memberships(statement)

    def _literal_edits(self, found: Expectation) -> Iterator[dict[int, Edit]]:
        """Yield edits of literals by number of the cell; those of a table's rows are made together."""
        choices = [self._edits(cell, found) for cell in found.cells]
        if len(choices) == 1 and found.table is None:
            yield from ({0: edit} for edit in choices[0])
            return
        for number in range(_CHOICES):
            yield {row: edits[number % len(edits)] for row, edits in enumerate(choices) if edits}

    def _computed(self, operand: Operand, found: Expectation) -> Iterator[Mutant | None]:
        """Yield the mutants in which a function replaces the expected value by another one."""
        if operand.boolean_only or found.tolerance != EXACT:
            return
        mutant = None
        if not found.is_argument:
            mutant = self._in_rows(found, dict(enumerate(map(self._wrapped, found.cells))))
        if mutant is None and (found.is_argument or found.table is not None):
            mutant = self._rebound(operand)
        yield mutant

    def _in_rows(self, found: Expectation, edits: dict[int, Edit]) -> Mutant | None:
        """Return the mutant with edits of cells; rows with unknown new names of tests are unchanged."""
        renamed: tuple[tuple[str, str], ...] = ()
        if found.table is not None:
            new = {row: self._changed(found.cells[row], edit) for row, edit in edits.items()}
            kept, renamed = found.table.renamed(found.name, new)
            edits = {row: edits[row] for row in kept}
        if not edits:
            return None
        mutant = self._mutant(found.within, [*edits.values()])
        return replace(mutant, parameters=renamed) if mutant is not None else None

    def _changed(self, cell: ast.expr, edit: Edit) -> ast.expr:
        """Return the expression of a cell after an edit."""
        text = self._source.edited(self._source.start(cell), self._source.end(cell), [edit])
        statement = parse_python(f"({text}\n)").body[0]
        assert isinstance(statement, ast.Expr)
        return statement.value

    def _wrapped(self, cell: ast.expr) -> Edit:
        return self._source.start(cell), self._source.end(cell), f"{names.OTHER}({self._source.text(cell)})"

    def _rebound(self, operand: Operand) -> Mutant | None:
        """Return the mutant that gives another value to an argument of the test."""
        name = self._source.text(operand.node)
        body = self._function.node.body
        if len(body) > 1 and ast.get_docstring(self._function.node, clean=False) is not None:
            body = body[1:]
        place, before, after = self._source.before(body[0])
        text = f"{before}{name} = {names.OTHER}({name}){after}"
        mutant = self._mutant(operand.within, [(place, place, text)])
        return (
            replace(mutant, after=f"{name} = other({name}); {mutant.after}") if mutant is not None else None
        )

    def _memberships(self, statement: ast.stmt) -> Iterator[Mutant | None]:
        """Yield the mutants of ``in``: another item, or a collection of another item."""
        match statement:
            case ast.Assert(test=ast.Compare(left=item, ops=[ast.In()], comparators=[collection])):
                pass
            case ast.Expr(value=ast.Call(args=[item, collection]) as call) if dotted(call) == "self.assertIn":
                if self._source.defines("assertIn"):
                    return
            case _:
                return
        if isinstance(item, ast.Constant) and isinstance(item.value, str):
            edit = (self._source.start(item), self._source.end(item), repr(item.value + _OTHER_WORDS))
            yield self._mutant(statement, [edit])
        elif isinstance(collection, ast.List | ast.Tuple | ast.Set):
            edit = (self._source.start(collection), self._source.end(collection), f"[{_OTHER_ITEM}]")
            yield self._mutant(statement, [edit])

    def _edits(self, cell: ast.expr, found: Expectation) -> list[Edit]:
        """Return edits of the literals of an expected value; each makes the whole unequal."""
        leaves = list(_leaves(cell))[-_MAX_LEAVES:]
        if found.boolean_only:
            leaves = [leaf for leaf in leaves if leaf is cell and isinstance(leaf.value, bool)]
        values = [_others(leaf.value, found.tolerance) for leaf in reversed(leaves)]
        return [
            (self._source.start(leaf), self._source.end(leaf), repr(others[number]))
            for number in range(_CHOICES)
            for leaf, others in zip(reversed(leaves), values, strict=True)
            if number < len(others)
        ]

    def _mutant(self, within: ast.stmt | ast.expr, edits: Sequence[Edit]) -> Mutant | None:
        return self._source.mutant(self._function.name, within, edits, MutantKind.VALUE)


def _is_expected(operand: Operand) -> bool:
    """Return whether an operand of an equality is the expected one rather than the tested one."""
    other = operand.other
    if other is None:
        return False
    own_rank, other_rank = _rank(operand.node), _rank(other)
    return own_rank < other_rank or (own_rank == other_rank and operand.is_second)


def _rank(node: ast.expr) -> int:
    """Return a rank of an operand: the higher, the more it looks like the tested one."""
    calls = sum(isinstance(child, ast.Call | ast.Await) for child in ast.walk(node))
    name = getattr(node, "id", "")
    return calls + bool(_ACTUAL.search(name)) - bool(_EXPECTED.search(name))


def _leaves(node: ast.expr) -> Iterator[ast.Constant]:
    """Yield the constants that can each make the whole unequal."""
    match node:
        case ast.Constant():
            yield node
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant() as number):
            yield number
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            if not any(isinstance(element, ast.Starred) for element in elements):
                for element in elements:
                    yield from _leaves(element)
        case ast.Set(elts=elements) if all(isinstance(element, ast.Constant) for element in elements):
            for element in elements:
                yield from _leaves(element)
        case ast.Dict(keys=keys, values=values):
            known = {key.value for key in keys if isinstance(key, ast.Constant)}
            if len(known) == len(keys):  # no key hides another one's value
                for value in values:
                    yield from _leaves(value)


def _others(value: object, tolerance: Tolerance) -> list[object]:
    """Return values unequal to a constant, even if comparisons ignore case, white space or rounding."""
    match value:
        case bool():
            return [not value]
        case int() if tolerance == EXACT:
            return [value + shift for shift in _SHIFTS]
        case int() | float():
            step = 1.0 + abs(value) / 2 + 4 * tolerance.of(2 * value)
            return [value + shift * step for shift in _SHIFTS]
        case str():
            return [other for shift in _SHIFTS if (other := _other_text(value, shift)) != value]
        case bytes():
            text = value.decode("latin-1")
            return [
                other.encode("latin-1") for shift in _SHIFTS if (other := _other_text(text, shift)) != text
            ]
        case None:
            return [0]
    return []


def _other_text(text: str, shift: int) -> str:
    """Return a text with another letter or digit at the end of the part that comparisons consider."""
    build = _BUILD.search(text)
    for place in reversed(range(build.start() if build is not None else len(text))):
        for first, size in (("0", 10), ("a", 26), ("A", 26)):
            offset = ord(text[place]) - ord(first)
            if 0 <= offset < size:
                other = chr(ord(first) + (offset + shift) % size)
                return f"{text[:place]}{other}{text[place + 1 :]}"
    return text + "x" * shift
