"""Tables of ``pytest.mark.parametrize``, and the names that pytest gives to their rows."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from engine.grading.counterfactual.python.functions import TestFunction, dotted

Literal = Callable[[ast.expr], ast.expr]
"""Returns what a name stands for, and every other expression as it is."""


@dataclass(frozen=True, slots=True)
class _Row:
    """A row without marks.

    Args:
        arguments: names of the arguments.
        number: its number, from 0.
        cells: expressions of its values.
        has_id: whether its name does not depend on its values.
    """

    arguments: Sequence[str]
    number: int
    cells: Sequence[ast.expr]
    has_id: bool

    def name(self, place: int = -1, changed: ast.expr | None = None) -> str | None:
        """Return the name that pytest makes of its values, with another one in a place; None if unknown."""
        if self.has_id:
            return None
        cells = [
            changed if changed is not None and at == place else cell for at, cell in enumerate(self.cells)
        ]
        parts = [_id(cell, name, self.number) for cell, name in zip(cells, self.arguments, strict=True)]
        return None if None in parts else "-".join(map(str, parts))


@dataclass(frozen=True, slots=True)
class ParameterTable:
    """Table of a decorator.

    Args:
        names: argument names.
        node: expression with the rows.
        rows: the rows; those with marks are left out.
        alone: whether no other decorator adds to the names of the tests.
    """

    names: tuple[str, ...]
    node: ast.expr
    rows: tuple[_Row, ...]
    alone: bool

    @classmethod
    def all_of(cls, function: TestFunction, literal: Literal) -> list[ParameterTable]:
        """Return the tables of a test function whose rows are known."""
        decorators = [one for one in function.node.decorator_list if _is_parametrize(one)]
        alone = len(decorators) == 1 and not any(map(_is_parametrize, function.class_decorators))
        tables = (_table(one, literal, alone=alone) for one in decorators if isinstance(one, ast.Call))
        return [table for table in tables if table is not None]

    def column(self, name: str) -> tuple[ast.expr, ...]:
        """Return the values of an argument."""
        return tuple(row.cells[self.names.index(name)] for row in self.rows)

    def renamed(
        self, name: str, new: Mapping[int, ast.expr]
    ) -> tuple[list[int], tuple[tuple[str, str], ...]]:
        """Return the rows in which an argument may change, and old and new names of those named otherwise.

        Rows whose names are not known stay, and those of equal names, which pytest numbers.

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
            if self.rows[number].has_id
            or (old[number] is not None and old[number] == name)
            or (self.alone and old[number] and name and old.count(old[number]) == 1)
        ]
        while True:
            names = [after[number] if number in kept else known for number, known in enumerate(old)]
            twice = [one for one in kept if names[one] != old[one] and names.count(names[one]) > 1]
            if not twice:
                break
            kept = [number for number in kept if number not in twice]
        renamed = ((old[number], names[number]) for number in kept if old[number] != names[number])
        return kept, tuple((str(before), str(now)) for before, now in renamed)


def _is_parametrize(decorator: ast.expr) -> bool:
    return dotted(decorator).endswith("mark.parametrize")


def _table(call: ast.Call, literal: Literal, *, alone: bool) -> ParameterTable | None:
    if len(call.args) != 2 or any(keyword.arg != "ids" for keyword in call.keywords):
        return None
    names = _argument_names(call.args[0])
    node = literal(call.args[1])
    if not names or not isinstance(node, ast.List | ast.Tuple):
        return None
    ids = literal(call.keywords[0].value) if call.keywords else None
    if ids is not None and not _are_texts(ids, len(node.elts)):
        return None
    rows = [_row(element, names, number, has_id=ids is not None) for number, element in enumerate(node.elts)]
    known = tuple(row for row in rows if row is not None)
    return ParameterTable(names, node, known, alone)


def _are_texts(node: ast.expr, count: int) -> bool:
    return (
        isinstance(node, ast.List | ast.Tuple)
        and len(node.elts) == count
        and all(isinstance(one, ast.Constant) and isinstance(one.value, str) for one in node.elts)
    )


def _argument_names(node: ast.expr) -> tuple[str, ...]:
    match node:
        case ast.Constant(value=str(text)):
            return tuple(name.strip() for name in text.split(",") if name.strip())
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            found = [
                one.value for one in elements if isinstance(one, ast.Constant) and isinstance(one.value, str)
            ]
            return tuple(found) if len(found) == len(elements) else ()
    return ()


def _row(row: ast.expr, names: Sequence[str], number: int, *, has_id: bool) -> _Row | None:
    """Return a row; None for one that is not known or has marks."""
    if isinstance(row, ast.Call) and dotted(row).rpartition(".")[2] == "param":
        cells: Sequence[ast.expr] = row.args
        given = {keyword.arg for keyword in row.keywords}
        if given - {"id"}:
            return None
        has_id = has_id or "id" in given
    elif len(names) == 1:
        cells = [row]
    else:
        cells = row.elts if isinstance(row, ast.Tuple | ast.List) else []
    if len(cells) != len(names) or any(isinstance(one, ast.Starred) for one in cells):
        return None
    return _Row(names, number, cells, has_id)


def _id(cell: ast.expr, name: str, number: int) -> str | None:
    """Return the part of a row's name that pytest makes of a value; None where it is not known."""
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
