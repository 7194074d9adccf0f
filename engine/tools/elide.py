"""Shortened views of long Python files, with function bodies left out."""

from __future__ import annotations

import ast

from engine.python_syntax import parse_python

_MIN_BODY_LINES = 4


def elided_lines(source: str) -> list[tuple[int, str]] | None:
    """Return numbered lines with each function body of 4 lines or more replaced by one note.

    Returns None when the source does not parse.
    """
    try:
        tree = parse_python(source)
    except ValueError:
        return None
    hidden = dict(_bodies(tree))
    shown: list[tuple[int, str]] = []
    lines = source.split("\n")
    if lines[-1] == "":
        lines.pop()
    number = 1
    while number <= len(lines):
        if number in hidden:
            last = hidden[number]
            shown.append((number, f"... lines {number}-{last} left out ..."))
            number = last + 1
        else:
            shown.append((number, lines[number - 1]))
            number += 1
    return shown


def _bodies(tree: ast.AST) -> list[tuple[int, int]]:
    """Return first and last line of every outermost function body that is left out."""
    bodies: list[tuple[int, int]] = []
    waiting = [tree]  # not recursion: expressions nest deeper than Python's stack
    while waiting:
        for node in ast.iter_child_nodes(waiting.pop()):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first, last = node.body[0].lineno, node.body[-1].end_lineno or node.body[-1].lineno
                if first > node.lineno and last - first + 1 >= _MIN_BODY_LINES:
                    bodies.append((first, last))
                    continue
            waiting.append(node)
    return bodies
