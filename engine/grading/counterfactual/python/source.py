"""Source text of a Python test file with its syntax tree; positions are byte offsets."""

from __future__ import annotations

import ast
import re
import warnings
from bisect import bisect_right
from codecs import BOM_UTF8

from engine.grading.counterfactual.base import Mutant, MutantKind

_MAX_TEXT = 300
_MAX_BYTES = 2 << 20


class PythonSource:
    """A parsed test file.

    Args:
        content: bytes of the file.
        path: path that its mutants name.

    Raises:
        ValueError: it is not UTF-8, too long, or not in this interpreter's grammar.
    """

    def __init__(self, content: bytes, path: str) -> None:
        if len(content) > _MAX_BYTES:
            raise ValueError(f"{path} has {len(content)} bytes; at most {_MAX_BYTES} are parsed")
        self.content = content
        self.path = path
        text = content.removeprefix(BOM_UTF8).decode("utf-8")
        self.tree = parse(text)
        self._line_starts = [0, *(found.end() for found in re.finditer(rb"\r\n|\r|\n", content))]
        self._first_column = len(content) - len(content.removeprefix(BOM_UTF8))

    def start(self, node: ast.stmt | ast.expr) -> int:
        """Return the offset of a node's first byte."""
        return self._offset(node.lineno, node.col_offset)

    def end(self, node: ast.stmt | ast.expr) -> int:
        """Return the offset after a node's last byte."""
        if node.end_lineno is None or node.end_col_offset is None:
            raise ValueError(f"a node of {self.path} has no end")
        return self._offset(node.end_lineno, node.end_col_offset)

    def text(self, node: ast.stmt | ast.expr) -> str:
        """Return the source text of a node."""
        return self.content[self.start(node) : self.end(node)].decode()

    def line_start(self, line: int) -> int:
        """Return the offset of a line, counted from 1."""
        return self._line_starts[line - 1]

    def line(self, offset: int) -> int:
        """Return the line of an offset, counted from 1."""
        return bisect_right(self._line_starts, offset)

    def _offset(self, line: int, column: int) -> int:
        return self._line_starts[line - 1] + column + (self._first_column if line == 1 else 0)

    def changed(
        self, function: str, within: ast.stmt | ast.expr, edit: tuple[int, int, str]
    ) -> Mutant | None:
        """Return the mutant that makes an edit in a statement or expression; None where that does not parse.

        Args:
            within: smallest node to show as evidence, which contains the edit.
            edit: first byte, byte after the last, and the text instead.
        """
        start, end, replacement = edit
        first, last = self.start(within), self.end(within)
        before = self.content[first:last]
        after = before[: start - first] + replacement.encode() + before[end - first :]
        try:
            parse(f"async def f():\n {after.decode()}\n")
        except ValueError:
            return None
        return Mutant(
            path=self.path,
            function=function,
            line=self.line(start),
            kind=MutantKind.CHANGED,
            before=before.decode()[:_MAX_TEXT],
            after=after.decode()[:_MAX_TEXT],
            start=start,
            end=end,
            replacement=replacement,
        )


def parse(text: str) -> ast.Module:
    """Return the syntax tree. Raises ValueError where the text cannot be parsed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"not Python of this version: {error}") from error
