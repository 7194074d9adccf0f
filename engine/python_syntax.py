"""Reading of Python sources of others, in any thread.

One thread reads at a time: CPython 3.11 counts the depth of all trees under construction together, and raises
SystemError where two threads make one (python/cpython#106905).
"""

from __future__ import annotations

import ast
import warnings
from threading import Lock
from typing import Any

_READING = Lock()


def parse_python(source: str | bytes) -> ast.Module:
    """Return the syntax tree, without the warnings that the source gives.

    Raises:
        ValueError: it is not Python of this version, or it is nested too deep.
    """
    with _READING, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(source)
        except (SyntaxError, RecursionError, MemoryError) as error:
            raise ValueError(f"not Python of this version: {error}") from error


def python_literal(text: str) -> Any:
    """Return the value of a literal. Raises ValueError where the text is none."""
    with _READING:
        try:
            return ast.literal_eval(text)
        except (SyntaxError, TypeError, RecursionError, MemoryError) as error:
            raise ValueError(f"no literal of Python: {error}") from error
