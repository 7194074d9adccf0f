"""Tables of ``pytest.mark.parametrize``.

Pytest names tests after the values in their rows, so a changed value changes a name: a submission could read
there what the original test expects. Where new names are not known for certain, rows keep the old ones.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

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
        number: its place in the table.
        has_id: whether its name does not depend on its values.
        name: that name, or the one that pytest makes of its values; None where it is not known.
    """

    node: ast.expr
    cells: Sequence[ast.expr]
    number: int
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
        names_tests: whether the names of the function's tests follow from the rows of its tables alone.
    """

    names: tuple[str, ...]
    node: ast.expr
    rows: tuple[_Row, ...]
    pytest: str
    names_tests: bool = False

    @classmethod
    def all_of(cls, function: TestFunction, literal: Literal) -> list[ParameterTable]:
        """Return the tables of a test function whose rows are known."""
        decorators = [
            one
            for one in (*function.node.decorator_list, *function.class_decorators)
            if isinstance(one, ast.Call) and dotted(one).endswith("mark.parametrize")
        ]
        own = [one for one in decorators if one in function.node.decorator_list]
        tables = [table for table in (_table(one, literal) for one in own) if table is not None]
        known = len(tables) == len(decorators)
        return [replace(table, names_tests=known) for table in tables]

    def row_names(self) -> dict[int, str]:
        """Return place in the table → name, for rows with a known and unique one."""
        counts = Counter(row.name for row in self.rows)
        return {row.number: row.name for row in self.rows if row.name is not None and counts[row.name] == 1}

    def column(self, name: str) -> tuple[ast.expr, ...]:
        """Return the values of an argument."""
        return tuple(row.cells[self.names.index(name)] for row in self.rows)

    def edits(self, source: PythonSource, name: str, edits: Mapping[int, Edit]) -> list[Edit]:
        """Return the edits of rows in which an argument changes.

        A row whose name depends on its values gets a new one with the new value, or keeps it where the new
        one would not be known or unique. Rows whose names are not known are left out, and those of equal
        names, which pytest numbers.

        Args:
            source: the test file.
            name: the argument.
            edits: number of a row → edit of the argument's value.
        """
        place = self.names.index(name)
        known = self.row_names()
        taken = {row.name for row in self.rows}
        found: list[Edit] = []
        for number, edit in edits.items():
            row = self.rows[number]
            if row.has_id or not _names_tests(row.cells[place]):
                found.append(edit)
            elif row.number in known:
                texts = [source.text(cell) for cell in row.cells]
                cell = row.cells[place]
                texts[place] = source.edited(source.start(cell), source.end(cell), [edit])
                new = _name([_parsed(text) for text in texts], self.names, row.number)
                if self.names_tests and new is not None and new not in taken:
                    taken.add(new)
                    found.append(edit)
                    continue
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
    ids: list[str | None] = [None] * len(node.elts)
    if call.keywords:
        texts = _texts(literal(call.keywords[0].value))
        if len(texts) != len(ids):
            return None
        ids = [*texts]
    rows = [_row(element, names, number, ids[number]) for number, element in enumerate(node.elts)]
    known = tuple(row for row in rows if row is not None)
    return ParameterTable(names, node, known, dotted(call).removesuffix(".mark.parametrize"))


def _texts(node: ast.expr) -> list[str]:
    """Return the elements of a list of texts; nothing for others."""
    if not isinstance(node, ast.List | ast.Tuple):
        return []
    found = [one.value for one in node.elts if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    return found if len(found) == len(node.elts) else []


def _argument_names(node: ast.expr) -> tuple[str, ...]:
    match node:
        case ast.Constant(value=str(text)):
            return tuple(name.strip() for name in text.split(",") if name.strip())
        case ast.Tuple() | ast.List():
            return tuple(_texts(node))
    return ()


def _row(row: ast.expr, names: Sequence[str], number: int, given_id: str | None) -> _Row | None:
    """Return a row; None for one that is not known or has marks."""
    has_id = given_id is not None
    if isinstance(row, ast.Call) and dotted(row).rpartition(".")[2] == "param":
        cells: Sequence[ast.expr] = row.args
        if {keyword.arg for keyword in row.keywords} - {"id"}:
            return None
        if row.keywords:
            has_id, given_id = True, getattr(row.keywords[0].value, "value", None)
    elif len(names) == 1:
        cells = [row]
    else:
        cells = row.elts if isinstance(row, ast.Tuple | ast.List) else []
    if len(cells) != len(names) or any(isinstance(one, ast.Starred) for one in cells):
        return None
    return _Row(row, cells, number, has_id, given_id if has_id else _name(cells, names, number))


def _name(cells: Sequence[ast.expr], names: Sequence[str], number: int) -> str | None:
    """Return the name that pytest makes of a row's values; None where it is not known."""
    parts = [_id(cell, name, number) for cell, name in zip(cells, names, strict=True)]
    return None if None in parts else "-".join(map(str, parts))


def _parsed(text: str) -> ast.expr:
    return ast.parse(text.strip(), mode="eval").body


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
