"""Tables of ``pytest.mark.parametrize``, and the names that pytest gives to their rows."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product

from engine.grading.counterfactual.python.functions import TestFunction, dotted

Literal = Callable[[ast.expr], ast.expr]
"""Returns the value of a name, and every other expression unchanged."""
_MAX_NAMES = 10_000


@dataclass(frozen=True, slots=True)
class _Row:
    """A row without marks.

    Args:
        arguments: names of the arguments.
        number: index of the row, from 0.
        cells: expressions of its values.
        given: name set by the table; None without one.
    """

    arguments: Sequence[str]
    number: int
    cells: Sequence[ast.expr]
    given: str | None

    def name(self, place: int = -1, changed: ast.expr | None = None) -> str | None:
        """Return the row's name, optionally with one changed cell; None if unknown."""
        if self.given is not None:
            return self.given
        cells = [
            changed if changed is not None and at == place else cell for at, cell in enumerate(self.cells)
        ]
        parts = [_id(cell, name, self.number) for cell, name in zip(cells, self.arguments, strict=True)]
        return None if None in parts else "-".join(map(str, parts))


@dataclass(frozen=True, slots=True)
class ParameterTable:
    """Table of a ``parametrize`` decorator.

    Args:
        names: argument names.
        node: expression with the rows.
        rows: the rows; those with marks are left out.
        around: parts that other decorators add to the names of tests before and after this table's rows;
            empty if unknown.
    """

    names: tuple[str, ...]
    node: ast.expr
    rows: tuple[_Row, ...]
    around: tuple[tuple[str, str], ...] = ()

    @classmethod
    def all_of(cls, function: TestFunction, literal: Literal) -> list[ParameterTable]:
        """Return the tables of a test function whose rows are known."""
        # The parts of a test's name are in the order in which the decorators are applied.
        decorators = [*reversed(function.node.decorator_list), *reversed(function.class_decorators)]
        tables = [_table(node, literal) for node in decorators if dotted(node).endswith("mark.parametrize")]
        parts = [None if table is None else table.row_names() for table in tables]
        return [
            replace(table, around=_around(parts[:place], parts[place + 1 :]))
            for place, table in enumerate(tables)
            if table is not None
        ]

    def column(self, name: str) -> tuple[ast.expr, ...]:
        """Return the values of an argument."""
        return tuple(row.cells[self.names.index(name)] for row in self.rows)

    def row_names(self) -> list[str] | None:
        """Return the names of all rows; None if one is unknown or two are equal, which pytest numbers."""
        names = [name for row in self.rows if (name := row.name()) is not None]
        elements = self.node.elts if isinstance(self.node, ast.List | ast.Tuple) else []
        return names if len(names) == len(elements) == len({*names}) else None

    def renamed(
        self, name: str, new: Mapping[int, ast.expr]
    ) -> tuple[list[int], tuple[tuple[str, str], ...]]:
        """Return the rows in which an argument may change, and old and new names of the renamed ones.

        Rows with unknown names are unchanged, and rows with equal names, which pytest numbers.

        Args:
            name: the argument.
            new: number of a row → changed value.
        """
        place = self.names.index(name)
        old = [row.name() for row in self.rows]
        after = {number: self.rows[number].name(place, value) for number, value in new.items()}
        kept = [
            number
            for number, name in after.items()
            if name is not None and old[number] is not None
            if old[number] == name or (self.around and old.count(old[number]) == 1)
        ]
        while True:
            names = [after[number] if number in kept else known for number, known in enumerate(old)]
            duplicates = [
                number for number in kept if names[number] != old[number] and names.count(names[number]) > 1
            ]
            if not duplicates:
                break
            kept = [number for number in kept if number not in duplicates]
        changed = [(old[number], names[number]) for number in kept if old[number] != names[number]]
        return kept, tuple(
            (f"{first}{before}{last}", f"{first}{now}{last}")
            for before, now in changed
            for first, last in self.around
        )


def _around(
    before: Sequence[list[str] | None], after: Sequence[list[str] | None]
) -> tuple[tuple[str, str], ...]:
    """Return the parts of names before and after a table's rows; empty if some are unknown."""
    first, last = ([part for part in parts if part is not None] for parts in (before, after))
    if len(first) < len(before) or len(last) < len(after):
        return ()
    return tuple(
        (
            "".join(f"{name}-" for name in names[: len(first)]),
            "".join(f"-{name}" for name in names[len(first) :]),
        )
        for names in islice(product(*first, *last), _MAX_NAMES)
    )


def _table(call: ast.expr, literal: Literal) -> ParameterTable | None:
    if not isinstance(call, ast.Call) or len(call.args) != 2:
        return None
    if any(keyword.arg != "ids" for keyword in call.keywords):
        return None
    names = _texts(call.args[0])
    node = literal(call.args[1])
    if not names or not isinstance(node, ast.List | ast.Tuple):
        return None
    ids: Sequence[str | None] = [None] * len(node.elts)
    if call.keywords and len(ids := _texts(literal(call.keywords[0].value))) != len(node.elts):
        return None
    rows = [_row(element, names, number, ids[number]) for number, element in enumerate(node.elts)]
    return ParameterTable(names, node, tuple(row for row in rows if row is not None))


def _texts(node: ast.expr) -> tuple[str, ...]:
    """Return the elements of a list of strings, or of a comma-separated string; empty for others."""
    match node:
        case ast.Constant(value=str(text)):
            return tuple(name.strip() for name in text.split(",") if name.strip())
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            texts = [
                element.value
                for element in elements
                if isinstance(element, ast.Constant) and isinstance(element.value, str)
            ]
            return tuple(texts) if len(texts) == len(elements) else ()
    return ()


def _row(row: ast.expr, names: Sequence[str], number: int, given: str | None) -> _Row | None:
    """Return a row; None if it is unknown or has marks."""
    if isinstance(row, ast.Call) and dotted(row).rpartition(".")[2] == "param":
        cells: Sequence[ast.expr] = row.args
        match row.keywords:
            case []:
                pass
            case [ast.keyword(arg="id", value=ast.Constant(value=str(text)))]:
                given = text
            case _:
                return None
    elif len(names) == 1:
        cells = [row]
    else:
        cells = row.elts if isinstance(row, ast.Tuple | ast.List) else []
    if len(cells) != len(names) or any(isinstance(cell, ast.Starred) for cell in cells):
        return None
    return _Row(names, number, cells, given)


def _id(cell: ast.expr, name: str, number: int) -> str | None:
    """Return the part of a row's name that pytest derives from a value; None if unknown."""
    if isinstance(cell, ast.List | ast.Tuple | ast.Dict | ast.Set):
        return f"{name}{number}"
    try:
        value = ast.literal_eval(cell)
    except (ValueError, TypeError):
        return None
    match value:
        case str():
            return value.encode("unicode_escape").decode("ascii")
        case bytes():
            return value.decode("latin-1") if value.isascii() and value.decode().isprintable() else None
    return str(value)
