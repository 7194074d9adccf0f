"""Tables of ``pytest.mark.parametrize``. Changed rows keep the names that pytest made of their values."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from engine.grading.counterfactual.python.functions import TestFunction, dotted
from engine.grading.counterfactual.python.source import Edit, PythonSource

Literal = Callable[[ast.expr], ast.expr]
"""Returns what a name stands for, and every other expression as it is."""


@dataclass(frozen=True, slots=True)
class _Row:
    """A row without marks.

    Args:
        node: its expression.
        cells: expressions of its values.
        has_id: whether its name does not depend on its values.
        name: the name that pytest makes of its values; None where that is not known.
    """

    node: ast.expr
    cells: Sequence[ast.expr]
    has_id: bool
    name: str | None


@dataclass(frozen=True, slots=True)
class ParameterTable:
    """Table of a decorator.

    Args:
        names: argument names.
        node: expression with the rows.
        rows: the rows; those with marks are left out.
        pytest: name of the module in the decorator.
    """

    names: tuple[str, ...]
    node: ast.expr
    rows: tuple[_Row, ...]
    pytest: str

    @classmethod
    def all_of(cls, function: TestFunction, literal: Literal) -> list[ParameterTable]:
        """Return the tables of a test function whose rows are known."""
        decorators = (one for one in function.node.decorator_list if isinstance(one, ast.Call))
        tables = (_table(one, literal) for one in decorators if dotted(one).endswith("mark.parametrize"))
        return [table for table in tables if table is not None]

    def column(self, name: str) -> tuple[ast.expr, ...]:
        """Return the values of an argument."""
        return tuple(row.cells[self.names.index(name)] for row in self.rows)

    def edits(self, source: PythonSource, name: str, edits: Mapping[int, Edit]) -> list[Edit]:
        """Return the edits of rows in which an argument changes.

        A row whose name depends on its values gets that name. Rows whose names are not known are left out,
        and those of equal names, which pytest numbers.

        Args:
            source: the test file.
            name: the argument.
            edits: number of a row → edit of the argument's value.
        """
        place = self.names.index(name)
        counts = Counter(row.name for row in self.rows)
        found: list[Edit] = []
        for number, edit in edits.items():
            row = self.rows[number]
            if row.has_id or not _names_tests(row.cells[place]):
                found.append(edit)
            elif row.name and counts[row.name] == 1:
                texts = [source.text(cell) for cell in row.cells]
                cell = row.cells[place]
                texts[place] = source.edited(source.start(cell), source.end(cell), [edit])
                text = f"{self.pytest}.param({', '.join(texts)}, id={row.name!r})"
                found.append((source.start(row.node), source.end(row.node), text))
        return found


def _table(call: ast.Call, literal: Literal) -> ParameterTable | None:
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
    return ParameterTable(names, node, known, dotted(call).removesuffix(".mark.parametrize"))


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
    parts = [_id(cell, name, number) for cell, name in zip(cells, names, strict=True)]
    return _Row(row, cells, has_id, None if None in parts else "-".join(map(str, parts)))


def _names_tests(cell: ast.expr) -> bool:
    """Return whether the name of a test may depend on a value."""
    return not isinstance(cell, ast.List | ast.Tuple | ast.Dict | ast.Set)


def _id(cell: ast.expr, name: str, number: int) -> str | None:
    """Return the part of a row's name that pytest makes of a value; None where it is not known."""
    if not _names_tests(cell):
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
