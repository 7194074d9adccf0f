"""Quiet mutants: false tests that any author could have written.

Sound for every solution, not only for the gold patch: no value satisfies an assertion before and after an
edit. Within a function the least conspicuous come first: those whose true value the test does not mention
elsewhere, that leave lists in their order, and that no other assertion contradicts.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from engine.grading.counterfactual.base import Mutant, MutantKind, some_of_each_line
from engine.grading.counterfactual.pairs import both_ways
from engine.grading.counterfactual.python import names
from engine.grading.counterfactual.python.expectations import Expectation, Expectations
from engine.grading.counterfactual.python.functions import TestFunction, dotted
from engine.grading.counterfactual.python.literals import Edit, LiteralEdit, Shown, literal_edits
from engine.grading.counterfactual.python.operands import Operand, certain_contexts
from engine.grading.counterfactual.python.source import PythonSource
from engine.python_syntax import parse_python

_MAX_DOUBT = 5
_MAX_PER_OPERAND = 4
_MAX_OPERANDS = 100
_MAX_SEARCHED = 20_000
_COLUMN_CHOICES = 2
_TELLING_NAMES = re.compile(
    r"(?i)(?:^|_)(?:not?|none|never|true|false|empty|missing|without|in|is|has|raises?)(?=_|$)"
)


@dataclass(frozen=True, slots=True)
class Candidate:
    """Edits that make a test false and read as its author's."""

    edits: tuple[Edit, ...]
    within: ast.stmt | ast.expr
    asserted: int
    """Line of the assertion that fails."""
    doubt: int
    """How much the mutant stands out, from 0."""
    parameters: tuple[tuple[str, str], ...] = ()
    row: int | None = None
    """As ``Mutant.row``."""


def quiet_candidates(source: PythonSource, function: TestFunction) -> list[Candidate]:
    """Return the candidates of quiet mutants of a function, the least conspicuous first; single rows last."""
    found: dict[tuple[tuple[Edit, ...], int | None], Candidate] = {}
    for one in sorted(
        _Finder(source, function).candidates(), key=lambda one: (one.row is not None, one.doubt)
    ):
        if one.doubt <= _MAX_DOUBT:
            found.setdefault((one.edits, one.row), one)
    return [*found.values()]


def quiet_mutants(source: PythonSource, function: TestFunction) -> Iterator[Mutant]:
    """Yield the quiet mutants of a function, the least conspicuous first."""
    mutants = (
        source.mutant(
            function.name,
            one.within,
            one.edits,
            MutantKind.VALUE,
            one.parameters,
            asserted=one.asserted,
            row=one.row,
        )
        for one in quiet_candidates(source, function)
    )
    yield from some_of_each_line(mutants)


class _Finder:
    def __init__(self, source: PythonSource, function: TestFunction) -> None:
        self._source = source
        self._function = function
        self._expectations = Expectations(source, function)
        first = min(source.start(node) for node in (*function.node.decorator_list, function.node))
        self._text = source.content[first : source.end(function.node)].decode()
        used = [node for node in ast.walk(function.node) if isinstance(node, ast.Name)]
        own = {node.id for node in used if isinstance(node.ctx, ast.Store)}
        self._last_uses: defaultdict[str, int] = defaultdict(int)
        """Last line that uses each variable of the function."""
        for node in used:
            if node.id in own:
                self._last_uses[node.id] = max(self._last_uses[node.id], node.lineno)

    def candidates(self) -> Iterator[Candidate]:
        """Yield the candidates of all kinds."""
        for operand, expectation in islice(self._expectations, _MAX_OPERANDS):
            yield from self._values(operand, expectation)
        for statement in self._expectations.statements:
            yield from self._opposites(statement)
            yield from self._exceptions(statement)

    def _values(self, operand: Operand, found: Expectation) -> Iterator[Candidate]:
        contradicted = self._later_uses(operand.within)
        beside = Shown.of(operand.within)
        if len(found.cells) == 1 and found.table is None:
            for one in self._edits(found.cells[0], found, beside)[:_MAX_PER_OPERAND]:
                yield Candidate((one.edit,), found.within, operand.within.lineno, one.doubt + contradicted)
            return
        cells = self._numbered(operand, found)
        edits = {number: self._edits(cell, found, beside) for number, cell in cells.items()}
        for choice in range(_COLUMN_CHOICES):
            chosen = {number: options[choice % len(options)] for number, options in edits.items() if options}
            parameters: tuple[tuple[str, str], ...] = ()
            if found.table is not None and isinstance(operand.node, ast.Name):
                new = {number: self._changed(cells[number], one) for number, one in chosen.items()}
                kept, parameters = found.table.renamed(self._source.constants, operand.node.id, new)
                chosen = {number: chosen[number] for number in kept}
            if chosen:
                doubt = min(one.doubt for one in chosen.values())
                kept_edits = tuple(one.edit for one in chosen.values())
                yield Candidate(
                    kept_edits, found.within, operand.within.lineno, doubt + contradicted, parameters
                )
        if found.table is None:
            yield from self._rows(operand, found, edits, contradicted)

    def _rows(
        self, operand: Operand, found: Expectation, edits: Mapping[int, list[LiteralEdit]], contradicted: int
    ) -> Iterator[Candidate]:
        """Yield the candidates that change one row of a loop's table."""
        for number, options in edits.items():
            for one in options[:_COLUMN_CHOICES]:
                doubt = one.doubt + contradicted
                yield Candidate((one.edit,), found.within, operand.within.lineno, doubt, row=number)

    def _numbered(self, operand: Operand, found: Expectation) -> dict[int, ast.expr]:
        if found.table is not None and isinstance(operand.node, ast.Name):
            return found.table.column(operand.node.id)
        return dict(enumerate(found.cells))

    def _changed(self, cell: ast.expr, one: LiteralEdit) -> ast.expr:
        """Return a value of a table after an edit."""
        start, end = self._source.start(cell), self._source.end(cell)
        first, last, replacement = one.edit
        content = self._source.content
        text = (content[start:first] + replacement.encode() + content[last:end]).decode()
        expression = parse_python(f"({text}\n)").body[0]
        assert isinstance(expression, ast.Expr)
        return expression.value

    def _edits(self, cell: ast.expr, found: Expectation, beside: Shown) -> list[LiteralEdit]:
        is_boolean = isinstance(cell, ast.Constant) and isinstance(cell.value, bool)
        if found.boolean_only and not is_boolean:
            return []
        around = self._text if len(self._text) < _MAX_SEARCHED else ""
        return literal_edits(self._source, cell, around=around, beside=beside, tolerance=found.tolerance)

    def _later_uses(self, node: ast.AST) -> int:
        """Return 1 where other statements use variables of an assertion, so that they may contradict it."""
        variables = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
        end = getattr(node, "end_lineno", 0) or 0
        return int(any(self._last_uses.get(name, 0) > end for name in variables))

    def _opposites(self, statement: ast.stmt) -> Iterator[Candidate]:
        match statement:
            case ast.Assert(test=test):
                found = self._opposite(test)
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="self")) as method) as call):
                found = _opposite_method(self._source, call, method)
            case _:
                return
        if found is not None:
            edit, doubt = found
            telling = int(_TELLING_NAMES.search(self._function.node.name) is not None)
            doubt += telling + 3 * self._later_uses(statement)
            yield Candidate((edit,), statement, statement.lineno, doubt)

    def _opposite(self, test: ast.expr) -> tuple[Edit, int] | None:
        """Return the edit to the opposite condition in its usual spelling, with its doubt."""
        start = self._source.start(test)
        match test:
            case ast.UnaryOp(
                op=ast.Not(), operand=ast.Call() | ast.Name() | ast.Attribute() | ast.Subscript()
            ):
                text = self._source.text(test)
                rest = text[len("not") :].lstrip(" ")
                return ((start, start + len(text) - len(rest), ""), 1) if rest[:1] not in "(" else None
            case ast.Call() | ast.Name() | ast.Attribute() | ast.Subscript():
                rare = dotted(test).rpartition(".")[2] in names.RARELY_NEGATED
                return None if rare else ((start, start, "not "), 1)
            case ast.Compare(ops=[ast.In() | ast.NotIn()]):
                edit = other_operator(self._source, test)
                return (edit, 1) if edit is not None else None
            case ast.Compare(ops=[ast.Is() | ast.IsNot()], comparators=[ast.Constant(value=None)]):
                edit = other_operator(self._source, test)
                return (edit, 1) if edit is not None else None
            case ast.Compare(left=ast.Call(func=called), ops=[op]) if isinstance(op, _ORDERS):
                if self._source.constants.is_builtin(called, "len"):
                    edit = other_operator(self._source, test)
                    return (edit, 2) if edit is not None else None
        return None

    def _exceptions(self, statement: ast.stmt) -> Iterator[Candidate]:
        for context in exception_contexts(self._source, statement):
            expected, name = context.args[0], dotted(context.func)
            if name not in names.RAISES or not isinstance(expected, ast.Name):
                continue
            if self._source.defines(name.rpartition(".")[2]):
                continue
            for other in names.COMMON_EXCEPTIONS.get(expected.id, ()):
                if {expected.id, other} & self._source.constants.bound.keys():
                    continue
                mentions = len(re.findall(rf"\b{expected.id}\b", self._text)) - 1
                edit = (self._source.start(expected), self._source.end(expected), other)
                doubt = 2 + min(mentions, 2) + bool(context.keywords)
                yield Candidate((edit,), context, context.lineno, doubt)


_PLAIN = (ast.Call, ast.Name, ast.Attribute, ast.Subscript)
_ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_OTHER_OPERATORS = both_ways(("is", "is not"), ("in", "not in"), ("<", ">="), (">", "<="))


def other_operator(source: PythonSource, test: ast.Compare) -> Edit | None:
    """Return the edit that puts the opposite operator in the place of a comparison's only one."""
    first, last = source.end(test.left), source.start(test.comparators[0])
    between = source.content[first:last].decode()
    found = re.fullmatch(r"([\s)]*)(is\s+not|is|not\s+in|in|<=|>=|<|>)([\s(]*)", between)
    if found is None or (found[2][0].isalpha() and not (found[1][-1:].isspace() and found[3])):
        return None
    other = _OTHER_OPERATORS[" ".join(found[2].split())]
    place = first + len(found[1].encode())
    return place, place + len(found[2].encode()), other


def exception_contexts(source: PythonSource, statement: ast.stmt) -> list[ast.Call]:
    """Return the calls in a statement that may expect an exception or a warning, which they name first."""
    calls: Sequence[ast.expr] = ()
    match statement:
        case ast.With() | ast.AsyncWith():
            calls = list(certain_contexts(source, statement))
        case ast.Expr(value=ast.Call() as call) if len(call.args) > 1:
            calls = [call]
    return [call for call in calls if isinstance(call, ast.Call) and call.args]


def _opposite_method(
    source: PythonSource, call: ast.Call, function: ast.Attribute
) -> tuple[Edit, int] | None:
    """Return the edit to the opposite assertion method, with its doubt."""
    name, end = function.attr, source.end(function)
    if name not in names.COMMON_OPPOSITES or source.defines(name):
        return None
    if any(isinstance(one, ast.Starred) for one in call.args):
        return None
    if {keyword.arg for keyword in call.keywords} - {"msg"}:
        return None
    other, first = names.COMMON_OPPOSITES[name], call.args[0] if call.args else call
    rare = isinstance(first, ast.Call) and dotted(first.func) in names.RARELY_NEGATED
    if other == "assertFalse" and (rare or isinstance(first, ast.Compare | ast.BoolOp)):
        return None
    return (end - len(name.encode()), end, other), 1
