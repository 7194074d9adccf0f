"""Tables of ``pytest.mark.parametrize``, and the names that pytest gives to their rows."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from engine.grading.counterfactual.python.constants import Constants
from engine.grading.counterfactual.python.functions import TestFunction, dotted

Literal = Callable[[ast.expr], ast.expr]
"""Returns what a name stands for, and every other expression as it is."""


@dataclass(frozen=True, slots=True)
class ParameterTable:
    """Table of a decorator.

    Args:
        names: argument names.
        node: expression with the rows.
        rows: expressions of each row's values; None for a row with marks, which is left alone.
        ids: name of each row where the decorator gives one.
        alone: whether no other decorator adds to the names of the tests.
    """

    names: tuple[str, ...]
    node: ast.expr
    rows: tuple[tuple[ast.expr, ...] | None, ...]
    ids: tuple[str | None, ...]
    alone: bool

    @classmethod
    def all_of(cls, function: TestFunction, literal: Literal) -> list[ParameterTable]:
        """Return the tables of a test function whose rows are known."""
        decorators = [one for one in function.node.decorator_list if _is_parametrize(one)]
        alone = len(decorators) == 1 and not any(map(_is_parametrize, function.class_decorators))
        tables = (_table(one, literal, alone=alone) for one in decorators if isinstance(one, ast.Call))
        return [table for table in tables if table is not None]

    def column(self, name: str) -> dict[int, ast.expr]:
        """Return row number → value of an argument, without rows that have marks."""
        place = self.names.index(name)
        return {number: row[place] for number, row in enumerate(self.rows) if row is not None}

    def renamed(
        self, constants: Constants, name: str, new: Mapping[int, ast.expr]
    ) -> tuple[list[int], tuple[tuple[str, str], ...]]:
        """Return the rows in which an argument may change, and old and new names of those named otherwise.

        Args:
            name: the argument.
            new: row number → changed value. Rows whose names would not be known are left out.
        """
        place = self.names.index(name)
        old = [self._parts(constants, number) for number in range(len(self.rows))]
        kept = list(new)
        while True:
            names = list(old)
            for number in kept:
                names[number] = self._parts(constants, number, place, new[number])
            pairs = {number: (old[number], names[number]) for number in kept if old[number] != names[number]}
            counts = Counter(old), Counter(names)
            refused = {
                number
                for number, (before, after) in pairs.items()
                if not self.alone or None in before or counts[0][before] > 1 or counts[1][after] > 1
            }  # pytest numbers equal names
            if not refused:
                joined = (
                    ("-".join(map(str, one)), "-".join(map(str, other))) for one, other in pairs.values()
                )
                return kept, tuple(joined)
            kept = [number for number in kept if number not in refused]

    def _parts(
        self, constants: Constants, number: int, place: int = -1, changed: ast.expr | None = None
    ) -> tuple[str | None, ...]:
        """Return the parts of a row's name, with a changed value in a place; None where one is not known."""
        row = self.rows[number]
        if self.ids[number] is not None or row is None:
            return (self.ids[number],)
        cells = [changed if changed is not None and at == place else cell for at, cell in enumerate(row)]
        return tuple(_id(constants, cell, name, number) for cell, name in zip(cells, self.names, strict=True))


def _is_parametrize(decorator: ast.expr) -> bool:
    return dotted(decorator).rpartition(".")[2] == "parametrize"


def _table(call: ast.Call, literal: Literal, *, alone: bool) -> ParameterTable | None:
    if len(call.args) != 2 or any(keyword.arg != "ids" for keyword in call.keywords):
        return None
    names = _argument_names(call.args[0])
    node = literal(call.args[1])
    if not names or not isinstance(node, ast.List | ast.Tuple):
        return None
    ids = _explicit_ids(call.keywords, len(node.elts), literal)
    found = [_row(element, len(names)) for element in node.elts]
    rows = [one for one in found if one is not None]
    if ids is None or len(rows) < len(found):
        return None
    return ParameterTable(
        names=names,
        node=node,
        rows=tuple(None if marked else cells for cells, _, marked in rows),
        ids=tuple(given or known for (_, given, _), known in zip(rows, ids, strict=True)),
        alone=alone,
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


def _explicit_ids(keywords: Sequence[ast.keyword], count: int, literal: Literal) -> list[str | None] | None:
    """Return the names that a decorator gives to its rows; None where they are computed."""
    if not keywords:
        return [None] * count
    node = literal(keywords[0].value)
    if not isinstance(node, ast.List | ast.Tuple) or len(node.elts) != count:
        return None
    found = [
        one.value for one in node.elts if isinstance(one, ast.Constant) and isinstance(one.value, str | None)
    ]
    return found if len(found) == count else None


def _row(row: ast.expr, count: int) -> tuple[tuple[ast.expr, ...], str | None, bool] | None:
    """Return values, name and presence of marks of a row; None where they are unknown."""
    if isinstance(row, ast.Call) and dotted(row.func).rpartition(".")[2] == "param":
        if len(row.args) != count or any(isinstance(one, ast.Starred) for one in row.args):
            return None
        given = {keyword.arg: keyword.value for keyword in row.keywords}
        name = given.get("id")
        text = name.value if isinstance(name, ast.Constant) and isinstance(name.value, str) else None
        return tuple(row.args), text, bool({"marks", None} & given.keys()) or (name is not None and not text)
    cells = [row] if count == 1 else row.elts if isinstance(row, ast.Tuple | ast.List) else []
    if len(cells) != count or any(isinstance(one, ast.Starred) for one in cells):
        return None
    return tuple(cells), None, False


def _id(constants: Constants, cell: ast.expr, name: str, number: int) -> str | None:
    """Return the part of a row's name that pytest makes of a value; None where it is not known."""
    try:
        value = constants.value(cell)
    except ValueError:
        return f"{name}{number}" if isinstance(cell, ast.List | ast.Tuple | ast.Dict | ast.Set) else None
    match value:
        case str():
            return value.encode("unicode_escape").decode("ascii")
        case bytes():
            return value.decode("latin-1") if value.isascii() and value.decode().isprintable() else None
        case None | bool() | int() | float() | complex():
            return str(value)
    return f"{name}{number}"
