"""Expected values of a test function: in its assertions, variables, loops' tables and decorators."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from engine.grading.counterfactual.python.functions import TestFunction, certain_statements, own_nodes
from engine.grading.counterfactual.python.helpers import asserted, compared_names
from engine.grading.counterfactual.python.operands import EXACT, Operand, Tolerance
from engine.grading.counterfactual.python.parameters import ParameterTable
from engine.grading.counterfactual.python.source import PythonSource, is_introspected


@dataclass(frozen=True, slots=True)
class Expectation:
    """An expected value of a test, or a column of them.

    Args:
        cells: expected values of the same assertion, edited together.
        within: smallest statement or expression with all cells.
        tolerance: accepted difference of numbers.
        boolean_only: whether only True and False may be changed.
        table: table of a decorator with the cells, in the order of its rows.
        name: argument of the test that receives them.
        is_argument: whether the only cell is an argument of the test with unknown values.
    """

    cells: tuple[ast.expr, ...]
    within: ast.stmt | ast.expr
    tolerance: Tolerance = EXACT
    boolean_only: bool = False
    table: ParameterTable | None = None
    name: str = ""
    is_argument: bool = False


class Expectations:
    """Expected values of a test function.

    Args:
        source: the test file.
        function: the function.
    """

    def __init__(self, source: PythonSource, function: TestFunction) -> None:
        self._source = source
        self._node = function.node
        self._stores: Counter[str] = Counter()
        self._loads: defaultdict[str, list[ast.Name]] = defaultdict(list)
        for name in (node for node in ast.walk(function.node) if isinstance(node, ast.Name)):
            if isinstance(name.ctx, ast.Load):
                self._loads[name.id].append(name)
            else:
                self._stores[name.id] += 1
        self._is_read_elsewhere = is_introspected(function.node)
        self._shared = {
            name
            for node in ast.walk(function.node)
            if isinstance(node, ast.Global | ast.Nonlocal)
            for name in node.names
        }
        self.statements = list(certain_statements(source, function.node.body, literal=self._literal))
        self._compared = compared_names(function.node, lambda node: asserted(source, node))
        self._tables = ParameterTable.all_of(function, self._literal)

    def __iter__(self) -> Iterator[tuple[Operand, Expectation]]:
        """Yield operands of certain equalities with their expected values."""
        for statement in self.statements:
            for operand in asserted(self._source, statement):
                yield operand, self._of(operand)

    def _of(self, operand: Operand) -> Expectation:
        node = operand.node
        alone = Expectation((node,), operand.within, operand.tolerance, operand.boolean_only)
        if not isinstance(node, ast.Name) or self._is_read_elsewhere or node.id in self._shared:
            return alone
        if any(id(load) not in self._compared for load in self._loads[node.id]):
            return alone  # it is not only compared for equality
        accepted = [self._compared[id(load)] for load in self._loads[node.id]]
        tolerance = Tolerance(
            absolute=max(item.absolute for item in accepted), relative=max(item.relative for item in accepted)
        )
        if node.id not in self._stores:
            expectation = self._of_parameter(node.id, tolerance, operand)
        elif self._stores[node.id] > 1:
            expectation = self._of_last_assignment(node, tolerance, operand)
        else:
            expectation = self._of_variable(node.id, tolerance, operand)
        return expectation or alone

    def _of_parameter(self, name: str, tolerance: Tolerance, operand: Operand) -> Expectation | None:
        if name not in {argument.arg for argument in (*self._node.args.args, *self._node.args.kwonlyargs)}:
            value = self._literal(ast.Name(id=name, ctx=ast.Load()))
            if isinstance(value, ast.Name) or self._source.is_introspected:
                return None
            return Expectation((value,), value, tolerance, operand.boolean_only)
        table = next((table for table in self._tables if name in table.names), None)
        # A fixture with the same argument may depend on its value.
        if table is not None and name not in self._source.fixture_arguments and table.rows:
            cells = table.column(name)
            return Expectation(cells, table.node, tolerance, operand.boolean_only, table, name)
        return Expectation((operand.node,), operand.within, tolerance, operand.boolean_only, is_argument=True)

    def _of_variable(self, name: str, tolerance: Tolerance, operand: Operand) -> Expectation | None:
        for node in own_nodes(self._node.body):
            if isinstance(node, ast.stmt) and (value := _assigned(node, name)) is not None:
                return Expectation((value,), node, tolerance, operand.boolean_only)
            if not isinstance(node, ast.For) or node not in self.statements or _breaks(node):
                continue
            if cells := _cells(*self._table(node.target, node.iter), name):
                return Expectation(cells, self._literal(node.iter), tolerance, operand.boolean_only)
        return None

    def _table(self, target: ast.expr, iterated: ast.expr) -> tuple[ast.expr, Sequence[ast.expr]]:
        """Return the part of a loop's target that receives the rows of its table, and the known rows."""
        match self._literal(iterated), target:
            case ((ast.List(elts=rows) | ast.Tuple(elts=rows)), _):
                return target, rows
            case ast.Call(func=ast.Name(id="enumerate"), args=[inner, *_]), ast.Tuple(elts=[_, part]):
                return self._table(part, inner)
            case (
                ast.Call(func=ast.Attribute(value=ast.Dict() as mapping, attr="items")),
                ast.Tuple(elts=[_, part]),
            ):
                return part, () if None in mapping.keys else mapping.values
        return target, ()

    def _of_last_assignment(
        self, name: ast.Name, tolerance: Tolerance, operand: Operand
    ) -> Expectation | None:
        """Return the last value assigned before a variable's use, if all its assignments are top-level."""
        assignments = [node for node in self._node.body if _assigned(node, name.id) is not None]
        if len(assignments) < self._stores[name.id]:
            return None
        before = [node for node in assignments if (node.end_lineno or 0) < name.lineno]
        value = _assigned(before[-1], name.id) if before else None
        if value is None:
            return None
        return Expectation((value,), before[-1], tolerance, operand.boolean_only)

    def _literal(self, node: ast.expr) -> ast.expr:
        """Return the value of a name that is bound once and read once, in this function or in its module."""
        if not isinstance(node, ast.Name):
            return node
        if self._stores[node.id]:
            once = self._stores[node.id] == 1 and len(self._loads[node.id]) == 1
            body: Iterable[ast.AST] = own_nodes(self._node.body)
        else:
            once = self._source.is_used_once(node.id)
            body = self._source.tree.body
        values = [value for statement in body if (value := _assigned(statement, node.id)) is not None]
        return values[0] if once and len(values) == 1 else node


def _assigned(statement: ast.AST, name: str) -> ast.expr | None:
    """Return the value that a statement assigns to a name alone; None for other statements."""
    match statement:
        case (
            ast.Assign(targets=[ast.Name(id=target)], value=value)
            | ast.AnnAssign(target=ast.Name(id=target), value=ast.expr() as value)
        ) if target == name:
            return value
    return None


def _cells(target: ast.expr, rows: Sequence[ast.expr], name: str) -> tuple[ast.expr, ...]:
    """Return the part of each row that a loop's target binds to a name; empty if one is unknown."""
    if isinstance(target, ast.Name):
        return tuple(rows) if target.id == name else ()
    if not isinstance(target, ast.Tuple | ast.List):
        return ()
    tuples = [row.elts for row in rows if isinstance(row, ast.Tuple | ast.List)]
    if len(tuples) < len(rows) or any(len(row) != len(target.elts) for row in tuples):
        return ()
    parts = (_cells(part, [row[at] for row in tuples], name) for at, part in enumerate(target.elts))
    return next((cells for cells in parts if cells), ())


def _breaks(loop: ast.For) -> bool:
    """Return whether a loop may end before its last iteration without an exception."""
    return any(isinstance(node, ast.Break | ast.Return) for node in ast.walk(loop))
