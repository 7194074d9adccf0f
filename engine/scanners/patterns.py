"""Regular expressions of people as scanners, matched in a separate process within a limit of time.

Some expressions take exponential time on some texts. The process of ``engine.isolation`` is then ended, and
the caller reports the expression as too slow.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from functools import partial

from engine.errors import TrainyardError
from engine.isolation import Limits, call_isolated
from engine.scanners.rules import Hit

MOST_CHARS = 500
"""Longest expression."""
PLACES = ("thoughts", "actions", "observations")
"""Texts of a step that can be searched."""
MOST_HITS = 200
"""Most matching steps of a trajectory that are reported."""
LIMITS = Limits("the expression", cpu_s=2.0, memory_bytes=512 << 20)
"""An honest expression takes some milliseconds for the texts of a trajectory."""


class PatternError(TrainyardError):
    """The text is not a regular expression."""


def check(pattern: str) -> None:
    """Compile an expression.

    Raises:
        PatternError: it is not a regular expression, or too long.
        HostileInputError: compiling it takes too long.
    """
    call_isolated(partial(_search, pattern, ()), LIMITS)


def scan(pattern: str, texts: Sequence[tuple[int, str]]) -> list[Hit]:
    """Return the steps whose text matches; ``texts`` are pairs of step and text.

    Raises:
        PatternError: see ``check``.
        HostileInputError: the search takes too long.
    """
    return call_isolated(partial(_search, pattern, texts), LIMITS)


def _search(pattern: str, texts: Sequence[tuple[int, str]]) -> list[Hit]:
    if not 0 < len(pattern) <= MOST_CHARS:
        raise PatternError(f"an expression has 1 to {MOST_CHARS} characters, this one has {len(pattern)}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compiled = re.compile(pattern, re.IGNORECASE | re.MULTILINE)
    except (re.error, OverflowError, RecursionError) as error:
        raise PatternError(f"not a regular expression: {error}") from None
    hits: list[Hit] = []
    for index, text in texts:
        if len(hits) < MOST_HITS and (match := compiled.search(text)):
            start, end = match.start(), min(match.end(), match.start() + 120)
            hits.append(Hit(index, text[max(0, start - 40) : end + 40]))
    return hits
