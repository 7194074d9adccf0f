"""Loops over tables, written out row by row: the line at which a test stops then tells the row."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from engine.grading.counterfactual.python.expectations import Expectations
from engine.grading.counterfactual.python.functions import test_functions
from engine.grading.counterfactual.python.source import PythonSource

_MAX_ROWS = 500
_NEWLINE = re.compile(rb"\r\n|\r|\n")


@dataclass(frozen=True, slots=True)
class Unrolled:
    """A test file whose loops were written out."""

    content: bytes
    rows: Mapping[int, tuple[int, int]]
    """Line of the content → line of the test file, and row of the table from 0: of the loops' bodies."""


def unrolled(content: bytes, path: str, lines: Collection[int]) -> Unrolled | None:
    """Return a test file in which loops over literal tables are a loop over each of their rows.

    Args:
        lines: lines of the file; of loops in each other the innermost around a line is written out.

    Returns:
        None where no line is in such a loop, or the file cannot be parsed.
    """
    try:
        source = PythonSource(content, path)
        chosen = _chosen(source, lines)
    except (ValueError, RecursionError):
        return None
    parts: list[bytes] = []
    rows: dict[int, tuple[int, int]] = {}
    done, line = 0, 1
    for loop, num_rows in chosen:
        first, begin, last = source.start(loop), source.start(loop.body[0]), source.end(loop)
        indent = content[source.line_start(loop.lineno) : first]
        before, body = content[done:first], content[begin:last]
        for number in range(num_rows):
            header = before + _header(source, loop, number)
            line += _newlines(header)
            for offset in range(_newlines(body) + 1):
                rows[line + offset] = source.line(begin) + offset, number
            line += _newlines(body)
            parts += [header, body]
            before = b"\n" + indent
        done = last
    return Unrolled(b"".join([*parts, content[done:]]), rows) if chosen else None


def _chosen(source: PythonSource, lines: Collection[int]) -> list[tuple[ast.For, int]]:
    """Return loops around lines, none of which is in another, in their order."""
    found = [
        (loop, num_rows)
        for function in test_functions(source.tree)
        for loop, num_rows in Expectations(source, function).loops()
        if 1 < num_rows <= _MAX_ROWS and _can_be_written_out(source, loop)
    ]
    innermost = {
        max(around, key=lambda one: source.start(one[0]))
        for line in lines
        if (around := [one for one in found if one[0].lineno <= line <= (one[0].end_lineno or 0)])
    }
    return [*_apart(source, sorted(innermost, key=lambda one: source.start(one[0])))]


def _apart(source: PythonSource, loops: list[tuple[ast.For, int]]) -> Iterator[tuple[ast.For, int]]:
    end = 0
    for loop, num_rows in loops:
        if source.start(loop) >= end:
            end = source.end(loop)
            yield loop, num_rows


def _can_be_written_out(source: PythonSource, loop: ast.For) -> bool:
    begins_line = not source.content[source.line_start(loop.lineno) : source.start(loop)].strip()
    is_decorated = bool(getattr(loop.body[0], "decorator_list", ()))
    end = source.end(loop.iter)
    is_bare = source.content[end:].lstrip().startswith(b":")
    return begins_line and is_bare and not is_decorated and not loop.orelse


def _header(source: PythonSource, loop: ast.For, number: int) -> bytes:
    """Return what stands before the body of the loop over one row."""
    end = source.end(loop.iter)
    colon = source.content.index(b":", end)
    row = f"for {source.text(loop.target)} in [*{source.text(loop.iter)}][{number}:{number + 1}]"
    return row.encode() + source.content[colon : source.start(loop.body[0])]


def _newlines(text: bytes) -> int:
    return len(_NEWLINE.findall(text))
