"""Parsing of Python sources of unknown origin.

CPython 3.11 counts the depth of all trees under construction together, and raises SystemError if one is
begun while another is built (python/cpython#106905). Only code that a garbage collection runs can begin one,
in this thread or, by a switch, in another (a traceback's text parses its lines): none runs meanwhile.
"""

from __future__ import annotations

import ast
import gc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

_READING = Lock()


@contextmanager
def _without_collections() -> Iterator[None]:
    with _READING:
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if was_enabled:
                gc.enable()


def parse_python(source: str | bytes) -> ast.Module:
    """Return the syntax tree; warnings about the source are suppressed.

    Raises:
        ValueError: the source is not Python of this version, or is nested too deeply.
    """
    with _without_collections(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(source)
        except (SyntaxError, RecursionError, MemoryError) as error:
            raise ValueError(f"not Python of this version: {error}") from error


def drop_docstrings(tree: ast.Module) -> ast.Module:
    """Remove the docstrings of a module and of all its definitions; return the module."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and ast.get_docstring(node, clean=False) is not None
        ):
            node.body = node.body[1:] or [ast.Pass()]
    return tree


def python_literal(text: str) -> Any:
    """Return the value of a literal. Raises ValueError for any other text."""
    with _without_collections():
        try:
            return ast.literal_eval(text)
        except (SyntaxError, TypeError, RecursionError, MemoryError) as error:
            raise ValueError(f"not a Python literal: {error}") from error
